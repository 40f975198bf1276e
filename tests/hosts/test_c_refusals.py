"""The C library rejects what is damaged or wrong, and says what to do."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime  # type: ignore[import-untyped]
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.hosts.c_library import Built, arguments, failure
from tests.runtime.bundle.manifests import DECODER
from tests.runtime.damaged_bundles import edit_json, give_settings, put, reseal
from tests.runtime.tiny_decoder import VOCABULARY, write_bundle

pytestmark = pytest.mark.slow


def shown(text: str, folder: Path) -> str:
    """A message without its folder, hashes and version."""
    text = text.replace(str(folder), "...").replace(onnxruntime.__version__, "VERSION")
    return re.sub("[0-9a-f]{16}", "HASH", text)


def edit_manifest(bundle: Path, edit: Callable[[Any], object]) -> None:
    path = bundle / "manifest.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


# --- bundles ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", {name.split(" = ")[0]: name for name in DECODER}.values())
def test_an_edited_manifest_is_rejected_unless_its_field_is_not_read(
    built: Built, copied: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    """The snapshot says which of the edits that Python rejects do no harm here."""
    edit_manifest(copied, DECODER[name])
    done = built.run("run", *arguments(copied, [1], 4))
    assert (shown(done.stderr, copied) if done.returncode else "runs") == snapshot


def test_inputs_that_the_manifest_does_not_name_are_rejected(built: Built, copied: Path) -> None:
    edit_manifest(copied, put("states", 0, "input", value="other"))
    assert failure(built, copied, [1]).startswith("graph: ")


def to_link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_no_graph(path: Path) -> None:
    path.write_bytes(b"no graph")
    reseal(path.parent)


FILES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "altered": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
    "missing": Path.unlink,
    "a link": to_link,
    "a pipe": to_pipe,
    "no graph": to_no_graph,
    "no bundle": lambda path: path.with_name("manifest.json").unlink(),
    "no JSON": lambda path: path.with_name("manifest.json").write_text('{"schema": 3,}'),
}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_rejected(
    built: Built, copied: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    FILES[name](copied / "decoder.onnx")
    assert shown(failure(built, copied, [1]), copied) == snapshot


def test_settings_in_a_graph_are_rejected_even_if_the_user_allows_them(
    built: Built, copied: Path
) -> None:
    give_settings(copied / "decoder.onnx")
    reseal(copied)
    allowing = built._replace(environment={"ORT_LOAD_CONFIG_FROM_MODEL": "1"})
    assert "graph: decoder.onnx has settings" in failure(allowing, copied, [1])


def test_files_of_all_sizes_around_a_block_have_their_hash(built: Built, tmp_path: Path) -> None:
    sizes = [0, 1, 55, 56, 63, 64, 65, 119, 120, 65535, 65536, 65537]
    others = {f"{size}.txt": bytes(range(256)) * (size // 256 + 1) for size in sizes}
    others = {name: data[: int(name[:-4])] for name, data in others.items()}
    write_bundle(tmp_path / "bundle", others=others)
    assert len(built.generate(tmp_path / "bundle", [1], 2)) == 2


REQUESTS: dict[str, tuple[list[int], dict[str, Any]]] = {
    "ids beyond the vocabulary": ([1, VOCABULARY], {}),
    "negative ids": ([-1], {}),
    "a prompt beyond the context": ([1] * 1101, {}),
    "new tokens beyond the context": ([1] * 1097, {}),
    **{
        f"{name} = {value}": ([1], {name: value})
        for name, value in [
            ("stop", (97,)),
            ("capacity", 3),
            ("min_new_tokens", 5),
            ("temperature", -1),
            ("temperature", "nan"),
            ("top_k", -1),
            ("top_p", 0),
            ("min_p", 1.5),
            ("repetition_penalty", 0),
            ("presence_penalty", 3),
            ("frequency_penalty", -3),
            ("seed", 2**63),
        ]
    },
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_wrong_request_is_rejected(
    built: Built, tiny: dict[str, Path], name: str, snapshot: SnapshotAssertion
) -> None:
    prompt, options = REQUESTS[name]
    assert failure(built, tiny["unified"], prompt, **options) == snapshot


def test_model_that_overflows_is_an_error(built: Built, tmp_path: Path) -> None:
    write_bundle(tmp_path / "poisoned", poisoned=7)
    assert "numeric: The model overflows at step 1" in failure(built, tmp_path / "poisoned", [7])


CERTIFICATES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a newer schema": put("schema", value=9),
    "an older schema": put("schema", value=2),
    "no lengths": lambda document: document["arrays"].pop(0),
    "unaligned": put("arrays", 0, "offset", value=2),
    "beyond the file": put("arrays", 0, "offset", value=1 << 40),
    "a negative size": put("arrays", 0, "shape", value=[-1]),
    "no threshold": put("thresholds", "mean_kl", value=None),
    "no probes": put("probes", value=[]),
}


@pytest.mark.parametrize("name", CERTIFICATES)
def test_verify_rejects_a_damaged_certificate(
    built: Built, copied: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    def change(certificate: dict[str, Any]) -> None:
        certificate["arrays"].sort(key=lambda array: array["name"] != "lengths")
        CERTIFICATES[name](certificate)

    edit_json(copied, "certificate.json", change)
    done = built.run("verify", copied)
    assert done.returncode == 2, done.stdout
    assert done.stderr == snapshot


# --- JSON ---------------------------------------------------------------------------------------

JSON = dict.fromkeys(
    [
        "{}",
        " [ ] ",
        "null",
        '"\\u00e9\\ud83d\\ude00\\n\\/"',
        '{"a": [1, -0, 0.5, 1e5, -1.25E-3, 1e-999, 18446744073709551615, 1e300]}',
        "[" * 32 + "]" * 32,
        '"é😀"',
        "0." + "1" * 400,
    ],
    "valid",
) | {
    "": "a value is missing",
    "{,}": "a key is missing",
    '{"a" 1}': "a colon is missing",
    "[1,]": "a value is not JSON",
    "[1 2]": "an array or object does not end",
    '{"a": 1, "b": 2, "a": 3}': "an object repeats a key",
    "01": "a number has leading zeros",
    "1.": "a number ends with its decimal point",
    "-": "a number has no digits",
    "1e": "a number has an empty exponent",
    "1e999": "a number exceeds the range of a double",
    "+1": "a value is not JSON",
    "NaN": "a value is not JSON",
    "tru": "a value is not JSON",
    '"a': "a string does not end",
    '"\\': "a string does not end",
    '"\t"': "a string contains a control character",
    '"\\u0000"': "a string contains NUL",
    '"\\ud800"': "a surrogate stands alone",
    '"\\udc00"': "a surrogate stands alone",
    '"\\u12"': "an escape is incomplete",
    '"\\u12x4"': "an escape is not hexadecimal",
    '"\\x"': "an escape is unknown",
    "[" * 33 + "]" * 33: "values are nested too deeply",
    "1 2": "text follows the document",
}


@pytest.mark.parametrize(("text", "outcome"), JSON.items())
def test_json_is_read_or_rejected(built: Built, text: str, outcome: str) -> None:
    printed = built.run("fuzz_json", text=text).stdout.rstrip("\n")
    assert printed.removeprefix("input is not valid JSON: ").split(" (at byte")[0] == outcome


@pytest.mark.parametrize("data", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
def test_text_that_is_not_utf8_is_rejected(built: Built, data: bytes) -> None:
    done = subprocess.run(
        [built.folder / "fuzz_json"], input=b'"' + data + b'"', capture_output=True
    )
    assert b"JSON: the text is not UTF-8 (at byte 1)" in done.stdout
