"""Manifests: what is read, and that everything else is a `ManifestError` with advice."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
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
from ortolan.runtime.bundle.manifest import Manifest, Output, Tokens
from ortolan.runtime.bundle.manifest_file import decode, encode
from ortolan.runtime.bundle.parts import Comparison
from ortolan.runtime.bundle.sources import ImageSource, PatchSource, TextSource, WaveSource
from ortolan.runtime.errors import ManifestError

FROZEN = Path(__file__).parents[2] / "data" / "manifests"

# every object of a manifest, by the keys that lead to it
OBJECTS: tuple[tuple[str | int, ...], ...] = (
    (),
    ("graphs", "decoder"),
    ("states", 0),
    ("tokens",),
    ("files", 0),
    ("provenance",),
)


def error_of(data: bytes) -> str:
    with pytest.raises(ManifestError, match=r"^manifest\.json") as caught:
        decode(data)
    return str(caught.value)


# --- manifests that are read ------------------------------------------------------------------


def test_encoded_manifest_decodes_to_itself() -> None:
    assert decode(DATA) == MANIFEST


@pytest.mark.parametrize("schema", [2, 3])
def test_manifests_of_older_versions_are_read(schema: int) -> None:
    manifest = decode((FROZEN / f"schema_{schema}.json").read_bytes())
    assert (manifest.schema, manifest.context_length, manifest.vocab_size) == (schema, 1100, 97)
    assert [state.shape for state in manifest.states] == [("batch", 2, "capacity", 16)] * 4
    assert all(state.window is None for state in manifest.states)
    host = manifest.host
    settings = None if host is None else (host.cache, host.query_heads, host.session.config_entries)
    assert settings == {2: None, 3: (None, 2, {})}[schema]


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


def test_lists_of_keys_and_a_certificate_may_be_absent() -> None:
    document = json.loads(DATA)
    for name in ("accepted_keys", "ignored_keys", "left_out"):
        del document["provenance"][name]
    assert read(document) == MANIFEST
    document |= {"certificate": None, "unverified": "imported"}
    assert read(document).certificate is None


def test_encoding_is_indented_and_does_not_depend_on_the_order_of_dictionaries() -> None:
    assert DATA.startswith(b'{\n  "schema": 5,\n  "kind": "decoder",\n')
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
    assert manifest.comparison == Comparison(
        encoder="0" * 64, scale=100.0, bias=-16.5, scores="sigmoid"
    )
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
    assert source.filler == 0
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
    assert read(document_of(kind)).schema == 5
    assert refusal(lambda: decode(changed(edit, kind))) == snapshot


def test_encoding_refuses_what_decoding_refuses(snapshot: SnapshotAssertion) -> None:
    assert refusal(lambda: encode(msgspec.structs.replace(MANIFEST, vocab_size=2))) == snapshot


def optional(struct: type) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct) if not field.required}


@pytest.mark.parametrize("keys", OBJECTS, ids=str)
def test_a_field_is_there_once(keys: tuple[str | int, ...]) -> None:
    part: Any = MANIFEST
    document: Any = json.loads(DATA)
    whole = document
    for key in keys:
        part = part[key] if isinstance(key, int) or key == "decoder" else getattr(part, key)
        document = document[key]
    for field, value in list(document.items()):
        document["another"] = value
        repeated = json.dumps(whole).encode().replace(b'"another"', json.dumps(field).encode())
        assert f"'{field}' twice" in error_of(repeated)
        del document["another"]
    for field in document.keys() - optional(type(part)) - {"host", "certificate"}:
        value = document.pop(field)
        assert field in error_of(json.dumps(whole).encode())
        document[field] = value


def test_a_field_repeated_in_escaped_letters_or_deeper_down_is_rejected() -> None:
    data = changed(lambda document: document.update(another=3))
    assert "'schema' twice" in error_of(data.replace(b'"another"', rb'"\u0073chema"'))
    data = changed(lambda document: document["provenance"]["versions"].update(another="9"))
    assert "'ortolan' twice" in error_of(data.replace(b'"another"', b'"ortolan"'))


@pytest.mark.parametrize("schema", [0, 1, 6, -1])
def test_another_schema_is_named_before_anything_else(schema: int) -> None:
    data = json.dumps({"schema": schema, "whatever": []}).encode()
    assert f"expected schema 5, got {schema}" in error_of(data)


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

Sized = Callable[[Any, int], object]
"""An edit that puts a number, or a number of items, into a manifest."""


def with_files(document: Any, count: int) -> None:
    while len(document["files"]) < count:
        name = f"x{len(document['files']):04}"
        document["files"].append({"name": name, "size": 1, "sha256": "0" * 64})


def with_states(document: Any, count: int) -> None:
    state = document["states"][0]
    document["states"] = [
        state | {field: f"{field}{index}" for field in ("name", "input", "output")}
        for index in range(count)
    ]


def labelled(document: Any, count: int) -> None:
    labels = [f"{index}" for index in range(count)]
    document["output"] = {"kind": "labels", "size": count, "labels": labels}


def at(path: str, of: Callable[[int], object] = lambda n: n) -> Sized:
    """Return an edit that puts a number, or what a function makes of it, at a path."""
    return lambda document, count: setting({path: of(count)})(document)


def texts(count: int) -> dict[str, str]:
    return {f"{index}": "1" for index in range(count)}


PATCH_LIMITS: dict[str, Sized] = {
    "MAX_PATCH_SIZE": at("source.patch"),
    "MAX_PATCH_REPEATS": lambda document, count: setting(
        {"source.layout": "channels_first", "source.frames": count}
    )(document),
    "MAX_POSITION_SIDE": at("source.table", lambda n: {"side": n, "interpolation": "corners"}),
}

LIMITS: list[tuple[str, str, Sized]] = [
    ("decoder", "MAX_CONTEXT", at("context_length")),
    ("decoder", "MAX_VOCABULARY", at("vocab_size")),
    ("decoder", "MAX_FILES", with_files),
    ("decoder", "MAX_STATES", with_states),
    ("decoder", "MAX_FILE_BYTES", at("files.5.size")),
    ("decoder", "MAX_GRAPH_BYTES", at("files.3.size")),
    ("decoder", "MAX_WHOLE_FILE_BYTES", at("files.4.size")),
    ("decoder", "MAX_DEVICES", at("devices", lambda n: [f"cpu{i}" for i in range(n)])),
    ("decoder", "MAX_STOP_TOKENS", at("tokens.eos", lambda n: [1] * n)),
    ("decoder", "MAX_SUPPRESSED", at("tokens.suppressed", lambda n: [1] * n)),
    ("decoder", "MAX_LABEL_LENGTH", at("provenance.model_type", lambda n: "x" * n)),
    ("decoder", "MAX_VERSIONS", at("provenance.versions", texts)),
    ("decoder", "MAX_CONFIG_KEYS", at("provenance.accepted_keys", lambda n: ["key"] * n)),
    ("decoder", "MAX_CONFIG_KEYS", at("provenance.ignored_keys", lambda n: ["key"] * n)),
    (
        "decoder",
        "MAX_STATE_RANK",
        at("states.0.shape", lambda n: ["batch", "capacity"] + [1] * (n - 2)),
    ),
    ("decoder", "MAX_DIMENSION", at("states.0.shape", lambda n: ["batch", "capacity", n])),
    ("encoder", "MAX_LABELS", labelled),
    ("encoder", "MAX_PROMPTS", at("source.prompts", texts)),
    ("encoder", "MAX_PROMPT_LENGTH", at("source.prompts", lambda n: {"a": "b" * n})),
    ("image", "MAX_IMAGE_SIDE", at("source.width")),
    ("image", "MAX_IMAGE_SIDE", at("source.height")),
    *(("patches", name, edit) for name, edit in PATCH_LIMITS.items()),
]


@pytest.mark.parametrize(("kind", "limit", "edit"), LIMITS)
def test_a_limit_is_accepted_and_one_more_is_not(kind: str, limit: str, edit: Sized) -> None:
    most = getattr(limits, limit)
    assert decode(changed(lambda document: edit(document, most), kind)).schema == 5
    error_of(changed(lambda document: edit(document, most + 1), kind))


def test_a_manifest_over_its_size_is_rejected_unread() -> None:
    spaces = limits.MAX_MANIFEST_BYTES - len(DATA)
    assert decode(DATA + b" " * spaces) == MANIFEST
    assert f"{limits.MAX_MANIFEST_BYTES} bytes" in error_of(DATA + b" " * (spaces + 1))


def test_the_error_stays_short_when_the_manifest_is_not() -> None:
    data = changed(lambda document: document.update({"x" * 500_000: 1}))
    assert len(error_of(data)) < 1000


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
