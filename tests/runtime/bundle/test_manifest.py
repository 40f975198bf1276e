"""Manifests: what is read, and that everything else is a `ManifestError` with advice."""

import json

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import tiny_bundle
from tests.runtime.bundle.manifests import (
    DATA,
    DECODER,
    KINDS,
    MANIFEST,
    SOURCES,
    changed,
    document_of,
    read,
    setting,
)
from tests.runtime.damaged_bundles import put
from tests.runtime.tiny_decoder import TinyDecoder

import bundle_schemas
from ortolan.runtime import limits
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.manifest import Manifest, Output, Tokens
from ortolan.runtime.bundle.manifest_file import decode, encode
from ortolan.runtime.bundle.parts import Comparison
from ortolan.runtime.bundle.sound_sources import WaveSource
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.errors import ManifestError


def error_of(data: bytes) -> str:
    with pytest.raises(ManifestError, match=r"^manifest\.json") as caught:
        decode(data)
    return str(caught.value)


# --- manifests that are read ------------------------------------------------------------------


def test_encoded_manifest_decodes_to_itself() -> None:
    assert decode(DATA) == MANIFEST


@pytest.mark.parametrize("kind", KINDS)
def test_fields_with_their_default_are_left_out(kind: str) -> None:
    document = json.loads(encode(read(document_of(kind)))) | {"tokenizer": ""}
    assert "null" not in json.dumps(document)
    assert "min_new_tokens" not in json.dumps(document)


@pytest.mark.parametrize("name", bundle_schemas.SCHEMAS)
def test_the_published_schemas_are_those_of_the_structs_and_of_bundles(
    name: str, tiny: TinyDecoder
) -> None:
    written = (bundle_schemas.FOLDER / f"{name}.schema.json").read_bytes()
    assert written == bundle_schemas.schema(name), "run scripts/bundle_schemas.py"
    schema = json.loads(written)
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    documents = [json.loads((tiny.path / f"{name}.json").read_bytes())]
    if name == "manifest":
        documents += map(document_of, KINDS)
    for document in documents:
        check.validate(document)
        for edit in ({"surplus": 1}, {"schema": 9}, {"kind": 3}):
            assert not check.is_valid(document | edit)


def test_a_certificate_may_be_absent() -> None:
    document = json.loads(DATA) | {"certificate": None, "unverified": "imported"}
    assert read(document).certificate is None


def test_encoding_is_indented_and_does_not_depend_on_the_order_of_dictionaries() -> None:
    assert DATA.startswith(b'{\n  "schema": 1,\n  "kind": "decoder",\n')
    assert DATA.endswith(b"}\n")
    versions = {"torch": "2.13.0", "onnx": "1.23.2", "ortolan": "0.1.0"}
    first, second = (
        msgspec.structs.replace(
            MANIFEST, provenance=msgspec.structs.replace(MANIFEST.provenance, versions=order)
        )
        for order in (versions, dict(reversed(versions.items())))
    )
    assert encode(first) == encode(second)


def test_split_graphs_and_a_state_of_fixed_size_are_accepted() -> None:
    files = tiny_bundle.files_of(tiny_bundle.model())
    files["prefill.onnx"] = files["decode.onnx"] = files.pop("decoder.onnx")
    document = json.loads(msgspec.json.encode(tiny_bundle.manifest_of(files)))
    document["graphs"] = {
        "prefill": {"file": "prefill.onnx"},
        "decode": {"file": "decode.onnx", "sequence": 1},
    }
    document["states"][0] |= {"update": "replace", "shape": ["batch", 64]}
    manifest = read(document)
    assert manifest.graphs["decode"].sequence == 1
    assert manifest.states[0].shape == ("batch", 64)


def test_everything_an_encoder_decoder_has_is_read() -> None:
    manifest = read(document_of("encoder-decoder"))
    assert manifest.kind == "encoder-decoder"
    assert manifest.source == TextSource(max_tokens=16)
    assert manifest.states[-1].shape == ("batch", 2, "source", 8)
    assert manifest.tokens == Tokens(
        bos=1, eos=(2, 3), pad=0, start=0, forced_first=4, forced_last=2, suppressed=(0,)
    )
    assert manifest.attention_maps == ("encoder.0.self", "decoder.0.cross")


def test_sources_of_images_are_read() -> None:
    manifest = read(document_of("image"))
    assert isinstance(manifest.source, ImageSource)
    assert manifest.source.std == (0.5, 0.5, 0.5)
    assert manifest.output == Output(kind="labels", size=2, labels=("no", "yes"))
    manifest = read(document_of("patches"))
    source = manifest.source
    assert isinstance(source, PatchSource)
    assert (source.square, source.vectors, source.numbers) == (8, 16, 48)
    assert [source.length(8 * rows, 24) for rows in (1, 2, 5)] == [3, 6, 15]
    assert manifest.takes == "images, RGB, of up to 64 patches of 4 by 4 pixels"
    manifest = read(document_of("compared"))
    assert manifest.texts == Comparison(encoder="0" * 64, scale=100.0, bias=-16.5, scores="sigmoid")
    assert manifest.takes.endswith("and texts to compare with")


@pytest.mark.parametrize("labels", [True, False])
def test_sources_of_sounds_are_read(labels: bool) -> None:
    document = document_of("wave")
    if not labels:
        document |= {"tokens": {}, "output": document["output"] | {"labels": []}}
    manifest = read(document)
    source, output = manifest.source, manifest.output
    assert isinstance(source, WaveSource)
    assert (source.samples, source.seconds, source.step_s) == (5120, 0.32, 0.02)
    assert [source.length(samples) for samples in (0, 399, 400, 719, 720)] == [0, 0, 1, 1, 2]
    assert source.length(source.reach(7)) == 7
    assert output is not None
    assert len(output.labels) == 24 * labels
    assert manifest.takes == "sounds of at most 0.32 seconds"
    assert manifest.gives == "logits of 24 symbols for each vector of a sound"


def test_an_encoder_decoder_of_waves_has_a_tokenizer_and_a_context_of_its_own() -> None:
    wave = SOURCES["wave"] | {"vectors": 1250}
    manifest = read(document_of("encoder-decoder") | {"source": wave})
    assert isinstance(manifest.source, WaveSource)
    assert manifest.source.vectors > manifest.context_length
    assert manifest.tokenizer is not None


def test_padding_codes_and_outputs_without_labels_are_read() -> None:
    document = document_of("encoder")
    put("source", "padding", value=0)(document)
    source = read(document).source
    assert isinstance(source, TextSource)
    assert source.padding == 0
    for kind in ("states", "embedding"):
        output = read(document | {"output": {"kind": kind, "size": 32}}).output
        assert output is not None
        assert output.labels == ()
    document = document_of("decoder")
    put("states", 0, "dtype", value="int8")(document)
    assert read(document).states[0].unit_bytes == 16


# --- manifests that are rejected --------------------------------------------------------------

EDITS = {f"decoder: {name}": ("decoder", edit) for name, edit in DECODER.items()} | {
    f"{kind}: {name}": (kind, edit) for kind, edits in KINDS.items() for name, edit in edits.items()
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_manifest_is_rejected(name: str, snapshot: SnapshotAssertion) -> None:
    kind, edit = EDITS[name]
    assert read(document_of(kind)).schema == 1
    assert refusal(lambda: decode(changed(edit, kind))) == snapshot


def test_encoding_refuses_what_decoding_refuses(snapshot: SnapshotAssertion) -> None:
    assert refusal(lambda: encode(msgspec.structs.replace(MANIFEST, vocab_size=2))) == snapshot


@pytest.mark.parametrize("field", ["schema", "file", "dtype", "bos", "sha256", "ortolan"])
def test_a_repeated_field_is_rejected(field: str) -> None:
    text = DATA.decode()
    line = next(line for line in text.splitlines() if f'"{field}":' in line)
    escaped = line.replace(f'"{field[0]}', f'"\\u{ord(field[0]):04x}')
    for again in (line, escaped):
        repeated = text.replace(line, f"{again.rstrip(',')},\n{line}", 1)
        assert f"'{field}' twice" in error_of(repeated.encode())


@pytest.mark.parametrize(
    "data",
    [
        *(DATA[:length] for length in range(0, len(DATA) - 2, 500)),
        b"null",
        b"[]",
        b"\xff",
        b"\xef\xbb\xbf" + DATA,
        DATA + b"x",
        DATA.decode().encode("utf-16"),
        *(DATA.replace(b'"tiny"', b'"' + text + b'"') for text in (b"\xff", rb"\ud800", b"\x00")),
        *(
            DATA.replace(b'"context_length": 16', b'"context_length": ' + number)
            for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5000)
        ),
        *(
            before + opening * 100_000
            for before in (b"", b'{"x":', DATA.rstrip(b"}\n") + b',"x":')
            for opening in (b"[", b'{"a":')
        ),
    ],
    ids=lambda data: repr(data[:20] + data[-20:]),
)
def test_torn_files_other_bytes_and_numbers_and_deep_nesting_are_rejected(data: bytes) -> None:
    error_of(data)


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "..", ".", "", "/etc/passwd", "a/b", "a\\b", "C:x", "a\x00b", "a\n"),
        *("Weights.bin", "ä", "x" * 97, "manifest.json"),
    ],
)
def test_path_tricks_in_names_are_rejected(name: str) -> None:
    for path in ("tokenizer", "certificate", "weights", "graphs.decoder.file"):
        document = document_of("decoder")
        setting({path: [name] if path == "weights" else name})(document)
        document["files"].append({"name": name, "size": 1, "sha256": "0" * 64})
        document["files"].sort(key=lambda file: file["name"])
        error_of(json.dumps(document).encode())


def test_the_longest_name_is_accepted() -> None:
    files = tiny_bundle.files_of(tiny_bundle.model()) | {"x" * 96: b""}
    assert decode(encode(tiny_bundle.manifest_of(files))).files[-1].name == "x" * 96


# --- limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("files.3.size", limits.MAX_GRAPH_BYTES),
        ("files.4.size", limits.MAX_WHOLE_FILE_BYTES),
        ("states.0.shape", ["batch", "capacity"] + [1] * (limits.MAX_STATE_RANK - 2)),
        ("states.0.shape", ["batch", "capacity", limits.MAX_DIMENSION]),
    ],
)
def test_a_limit_is_accepted(path: str, value: object) -> None:
    assert decode(changed(setting({path: value}))).schema == 1


def test_a_manifest_over_its_size_is_rejected_unread() -> None:
    spaces = limits.MAX_MANIFEST_BYTES - len(DATA)
    assert decode(DATA + b" " * spaces) == MANIFEST
    assert f"{limits.MAX_MANIFEST_BYTES} bytes" in error_of(DATA + b" " * (spaces + 1))


def test_the_error_stays_short_when_the_manifest_is_not() -> None:
    data = changed(lambda document: document.update({"x" * 500_000: 1}))
    assert len(error_of(data)) < 1000


@settings(deadline=None)
@given(st.data())
def test_random_changes_raise_only_manifest_errors(data: st.DataObject) -> None:
    mutant = bytearray(DATA)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(mutant) - 1))
        length = data.draw(st.integers(0, 4))
        mutant[position : position + length] = data.draw(st.binary(max_size=4))
    try:
        manifest = decode(bytes(mutant))
    except ManifestError:
        return
    assert isinstance(manifest, Manifest)
