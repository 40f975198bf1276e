import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime import tiny_bundle
from tests.runtime.damaged_bundles import put

from ortolan.runtime import limits
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.manifest_file import decode, encode
from ortolan.runtime.errors import ManifestError

MANIFEST = tiny_bundle.manifest_of(tiny_bundle.files_of(tiny_bundle.model()))
DATA = encode(MANIFEST)

# every object of a manifest, by the keys that lead to it
OBJECTS: tuple[tuple[str | int, ...], ...] = (
    (),
    ("graphs", "decoder"),
    ("states", 0),
    ("tokens",),
    ("files", 0),
    ("provenance",),
)

Change = Callable[[Any], object]


def changed(change: Change) -> bytes:
    document = json.loads(DATA)
    change(document)
    return json.dumps(document).encode()


def put_shape(*shape: str | int) -> Change:
    return put("states", 0, "shape", value=list(shape))


def provenance(**fields: object) -> Change:
    return lambda document: document["provenance"].update(fields)


def reached(document: Any, keys: tuple[str | int, ...]) -> Any:
    for key in keys:
        document = document[key]
    return document


def error_of(data: bytes) -> str:
    with pytest.raises(ManifestError, match=r"^manifest\.json") as caught:
        decode(data)
    return str(caught.value)


def test_encoded_manifest_decodes_to_itself() -> None:
    assert decode(DATA) == MANIFEST


def test_manifest_without_the_newer_lists_of_keys_is_read() -> None:
    lists = ("accepted_keys", "ignored_keys", "left_out")
    data = changed(lambda document: [document["provenance"].pop(name) for name in lists])
    assert decode(data) == MANIFEST


def test_schema_2_has_no_host_and_is_read() -> None:
    def older(document: dict[str, Any]) -> None:
        document["schema"] = 2
        del document["host"]

    assert decode(changed(older)) == msgspec.structs.replace(MANIFEST, schema=2, host=None)
    assert "`host` from schema 3 on" in error_of(changed(put("schema", value=2)))
    assert "`host` from schema 3 on" in error_of(changed(put("host", value=None)))


def test_schema_3_has_no_cache_and_no_config_entries_and_is_read() -> None:
    def older(document: dict[str, Any]) -> None:
        document["schema"] = 3
        del document["host"]["cache"], document["host"]["session"]["config_entries"]

    manifest = decode(changed(older))
    assert manifest.host is not None
    assert manifest.host.cache is None
    assert manifest.host.session.config_entries == {}
    assert "fields of newer schemas" in error_of(changed(put("schema", value=3)))


def test_growing_states_need_a_kind_of_cache() -> None:
    assert "`host.cache`" in error_of(changed(put("host", "cache", value=None)))
    assert "Invalid enum value" in error_of(changed(put("host", "cache", value="ring")))


@pytest.mark.parametrize("name", ["session.register_custom_ops", "mlas.", "mlas.a b", "x"])
def test_config_entries_only_select_kernels(name: str) -> None:
    entries = put("host", "session", "config_entries", value={name: "1"})
    assert "config_entries" in error_of(changed(entries))


@pytest.mark.parametrize("name", ["LD_PRELOAD", "ORT_LOAD_CONFIG_FROM_MODEL", "ORT_"])
def test_variables_only_select_kernels(name: str) -> None:
    variables = put("host", "session", "environment", value={name: "1"})
    assert "environment" in error_of(changed(variables))


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


def test_encoding_refuses_what_decoding_refuses() -> None:
    with pytest.raises(ManifestError, match="vocabulary"):
        encode(msgspec.structs.replace(MANIFEST, vocab_size=2))


@pytest.mark.parametrize("length", range(0, len(DATA) - 2, 50))
def test_torn_manifest_is_rejected(length: int) -> None:
    error_of(DATA[:length])


@pytest.mark.parametrize("keys", OBJECTS, ids=str)
def test_unknown_field_is_rejected(keys: tuple[str | int, ...]) -> None:
    data = changed(lambda document: reached(document, keys).update(command="rm"))
    assert "command" in error_of(data)


def without(keys: tuple[str | int, ...], field: str) -> Change:
    return lambda document: reached(document, keys).pop(field)


@pytest.mark.parametrize("keys", OBJECTS, ids=str)
def test_missing_field_is_rejected(keys: tuple[str | int, ...]) -> None:
    optional = {
        *("sequence", "min_new_tokens", "bos", "eos", "pad"),
        *("start", "forced_first", "forced_last", "suppressed"),
        *("prefill_precision", "quantized", "source", "output", "attention_maps", "unverified"),
        *("accepted_keys", "ignored_keys", "left_out", "quality", "calibrated_on"),
        "foreign_operators",
    }
    for field in set(reached(json.loads(DATA), keys)) - optional:
        assert field in error_of(changed(without(keys, field)))


@pytest.mark.parametrize("keys", OBJECTS, ids=str)
def test_repeated_field_is_rejected(keys: tuple[str | int, ...]) -> None:
    for field, value in reached(json.loads(DATA), keys).items():
        data = changed(put(*keys, "another", value=value))
        repeated = data.replace(b'"another"', json.dumps(field).encode())
        assert f"'{field}' twice" in error_of(repeated)


def test_field_repeated_in_escaped_letters_or_deeper_down_is_rejected() -> None:
    data = changed(lambda document: document.update(another=3))
    assert "'schema' twice" in error_of(data.replace(b'"another"', rb'"\u0073chema"'))
    data = changed(lambda document: document["provenance"]["versions"].update(another="9"))
    assert "'ortolan' twice" in error_of(data.replace(b'"another"', b'"ortolan"'))


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("schema",), "1"),
        (("schema",), True),
        (("schema",), 10**30),
        (("schema",), 1.0),
        (("kind",), "encoder"),
        (("precision",), "int3"),
        (("attention",), "standard"),
        (("devices",), "cpu"),
        (("devices",), []),
        (("devices",), [""]),
        (("context_length",), "16"),
        (("context_length",), True),
        (("context_length",), 16.0),
        (("context_length",), 0),
        (("vocab_size",), 0),
        (("graphs",), []),
        (("graphs", "decoder", "sequence"), 0),
        (("states", 0, "dtype"), "int4"),
        (("states", 0, "update"), "drop"),
        (("states", 0, "shape"), ["batch", 2, "capacity", 8.0]),
        (("states", 0, "name"), ""),
        (("weights",), None),
        (("tokens", "eos"), 2),
        (("tokens", "bos"), -1),
        (("tokenizer",), 5),
        (("certificate",), None),
        (("files",), []),
        (("files", 0, "size"), -1),
        (("files", 0, "size"), 2**64),
        (("files", 0, "sha256"), "0" * 63),
        (("files", 0, "sha256"), "A" * 64),
        (("files", 0, "sha256"), "0" * 64 + "\n"),
        (("provenance", "versions"), {"ortolan": 1}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_value_of_the_wrong_kind_is_rejected(keys: tuple[str | int, ...], value: object) -> None:
    error_of(changed(put(*keys, value=value)))


@pytest.mark.parametrize("schema", [0, 1, 6, -1])
def test_other_schema_is_named_before_anything_else(schema: int) -> None:
    data = json.dumps({"schema": schema, "whatever": []}).encode()
    assert f"expected schema 5, got {schema}" in error_of(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
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
def test_other_bytes_and_numbers_and_deep_nesting_are_rejected(data: bytes) -> None:
    error_of(data)


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "..",
        ".",
        "",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "C:x",
        "a\x00b",
        "a\n",
        "Weights.bin",
        "ä",
        "x" * 97,
        "manifest.json",
    ],
)
@pytest.mark.parametrize(
    "keys",
    [("tokenizer",), ("certificate",), ("weights", 0), ("graphs", "decoder", "file")],
    ids=str,
)
def test_path_tricks_in_names_are_rejected(keys: tuple[str | int, ...], name: str) -> None:
    def change(document: dict[str, Any]) -> None:
        put(*keys, value=name)(document)
        document["files"].append({"name": name, "size": 1, "sha256": "0" * 64})
        document["files"].sort(key=lambda file: file["name"])

    error_of(changed(change))


def test_longest_name_is_accepted() -> None:
    files = tiny_bundle.files_of(tiny_bundle.model()) | {"x" * 96: b""}
    assert decode(encode(tiny_bundle.manifest_of(files))).files[-1].name == "x" * 96


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda document: document["files"].pop(1), "certificate.json"),
        (lambda document: document["files"].reverse(), "sorted"),
        (lambda document: document["files"].insert(0, document["files"][0]), "twice"),
        (put("tokenizer", value="decoder.onnx"), "'decoder.onnx' twice"),
        (put("weights", value=["decoder.onnx"]), "'decoder.onnx' twice"),
        (put("devices", value=["cpu", "cpu"]), "'cpu' twice"),
        (put("graphs", value={}), "none"),
        (put("graphs", value={"prefill": {"file": "decoder.onnx"}}), "prefill"),
        (put("graphs", "encoder", value={"file": "certificate.bin"}), "encoder"),
        (put("graphs", "decoder", "sequence", value=17), "17"),
        (put("tokens", "eos", value=[2, 24]), "'eos'"),
        (put("tokens", "bos", value=24), "'bos'"),
        (put("tokens", "pad", value=24), "'pad'"),
        (put("states", 1, "name", value="0.key"), "twice"),
        (put("states", 1, "input", value="past_key_values.0.key"), "twice"),
        (put("states", 1, "output", value="present.0.key"), "twice"),
        (put_shape("batch", 2, 16, 8), "capacity"),
        (put_shape("batch", "batch", "capacity", 8), "batch"),
        (put_shape("batch", 2, "capacity", "width"), "width"),
        (put_shape("batch", 0, "capacity", 8), "got 0"),
        (put("states", 0, "update", value="replace"), "capacity"),
    ],
)
def test_fields_that_disagree_are_rejected(change: Change, part: str) -> None:
    assert part in error_of(changed(change))


def test_split_graphs_and_a_state_of_fixed_size_are_accepted() -> None:
    files = tiny_bundle.files_of(tiny_bundle.model())
    files["prefill.onnx"] = files["decode.onnx"] = files.pop("decoder.onnx")
    document = json.loads(msgspec.json.encode(tiny_bundle.manifest_of(files)))
    document["graphs"] = {
        "prefill": {"file": "prefill.onnx"},
        "decode": {"file": "decode.onnx", "sequence": 1},
    }
    document["states"][0] |= {"update": "replace", "shape": ["batch", 64]}
    manifest = decode(json.dumps(document).encode())
    assert manifest.graphs["decode"].sequence == 1
    assert manifest.states[0].shape == ("batch", 64)


def with_extra_files(count: int) -> Change:
    def change(document: dict[str, Any]) -> None:
        while len(document["files"]) < count:
            name = f"x{len(document['files']):04}"
            document["files"].append({"name": name, "size": 1, "sha256": "0" * 64})

    return change


def with_states(count: int) -> Change:
    def change(document: dict[str, Any]) -> None:
        state = document["states"][0]
        document["states"] = [
            state | {field: f"{field}{index}" for field in ("name", "input", "output")}
            for index in range(count)
        ]

    return change


@pytest.mark.parametrize(
    ("limit", "make"),
    [
        (limits.MAX_CONTEXT, lambda n: put("context_length", value=n)),
        (limits.MAX_VOCABULARY, lambda n: put("vocab_size", value=n)),
        (limits.MAX_FILES, with_extra_files),
        (limits.MAX_STATES, with_states),
        (limits.MAX_FILE_BYTES, lambda n: put("files", -1, "size", value=n)),
        (limits.MAX_GRAPH_BYTES, lambda n: put("files", 2, "size", value=n)),
        (limits.MAX_WHOLE_FILE_BYTES, lambda n: put("files", 3, "size", value=n)),
        (limits.MAX_DEVICES, lambda n: put("devices", value=[f"cpu{i}" for i in range(n)])),
        (limits.MAX_STOP_TOKENS, lambda n: put("tokens", "eos", value=[1] * n)),
        (limits.MAX_SUPPRESSED, lambda n: put("tokens", "suppressed", value=[1] * n)),
        (limits.MAX_LABEL_LENGTH, lambda n: provenance(model_type="x" * n)),
        (limits.MAX_VERSIONS, lambda n: provenance(versions={f"{i}": "1" for i in range(n)})),
        (limits.MAX_CONFIG_KEYS, lambda n: provenance(accepted_keys=["key"] * n)),
        (limits.MAX_CONFIG_KEYS, lambda n: provenance(ignored_keys=["key"] * n)),
        (limits.MAX_STATE_RANK, lambda n: put_shape("batch", "capacity", *[1] * (n - 2))),
        (limits.MAX_DIMENSION, lambda n: put_shape("batch", "capacity", n)),
    ],
)
def test_limit_is_accepted_and_one_more_is_not(limit: int, make: Callable[[int], Change]) -> None:
    assert decode(changed(make(limit))).schema == 5
    error_of(changed(make(limit + 1)))


def test_manifest_over_its_size_is_rejected_unread() -> None:
    spaces = limits.MAX_MANIFEST_BYTES - len(DATA)
    assert decode(DATA + b" " * spaces) == MANIFEST
    assert f"{limits.MAX_MANIFEST_BYTES} bytes" in error_of(DATA + b" " * (spaces + 1))


def test_error_stays_short_when_the_manifest_is_not() -> None:
    data = changed(lambda document: document.update({"x" * 500_000: 1}))
    assert len(error_of(data)) < 1000


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_manifest_errors(data: bytes) -> None:
    error_of(data)


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


def test_a_bundle_without_a_certificate_says_why() -> None:
    def drop(document: Any) -> None:
        document["certificate"] = None

    assert "a certificate, or the reason in `unverified`" in error_of(changed(drop))

    def drop_and_explain(document: Any) -> None:
        drop(document)
        document["unverified"] = "imported"

    assert decode(changed(drop_and_explain)).certificate is None
