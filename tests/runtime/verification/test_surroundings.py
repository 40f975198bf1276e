"""What surrounds a model: each change of it, hashes made right, is found."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from tests.runtime import tiny_encoder
from tests.runtime.tiny_decoder import BOS, EOS, tokenizer_json, write_bundle
from tests.runtime.tiny_encoder import LABELS

from ortolan.runtime import limits
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.errors import CertificateError
from ortolan.runtime.inputs.tokenizer import Tokenizer, open_tokenizer
from ortolan.runtime.verification.certificate_files import JSON_NAME, read_certificate
from ortolan.runtime.verification.replay import verify
from ortolan.runtime.verification.surroundings import (
    PROBE_TEXTS,
    Surroundings,
    meanings_of,
    read_probes,
)

Json = dict[str, Any]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle whose certificate says what surrounds it."""
    folder = tmp_path / "bundle"
    write_bundle(folder, tokenizer=tokenizer_json(), tokens=Tokens(bos=BOS, eos=(EOS,)))
    opened = open_bundle(folder)
    manifest, tokenizer = opened.manifest, open_tokenizer(opened)
    assert tokenizer is not None
    expected = Surroundings(
        meanings=meanings_of(manifest),
        files={file.name: file.sha256 for file in manifest.files if "tokenizer" in file.name},
        readings=read_probes(tokenizer),
    )
    change(folder, JSON_NAME, lambda said: said | {"surroundings": msgspec.to_builtins(expected)})
    assert verify(folder, exact=False, isolate=False).surroundings is not None
    return folder


def change(folder: Path, name: str, edit: Callable[[Json], Json | None]) -> None:
    """Change a file, and make what the manifest says of it right again."""
    document = json.loads((folder / name).read_text())
    document = edit(document) or document
    data = json.dumps(document).encode()
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    if name != "manifest.json":
        for file in manifest["files"]:
            if file["name"] == name:
                file |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (folder / "manifest.json").write_text(json.dumps(manifest))


def test_undamaged_bundle_passes_and_says_what_was_tried(bundle: Path) -> None:
    report = verify(bundle, exact=False, isolate=False)

    assert report.verdict == "PASS"
    assert report.surroundings is not None
    assert report.surroundings.readings > 0
    assert "texts to ids and back" in report.surroundings.summary


@pytest.mark.parametrize(
    "edit",
    [
        lambda said: said["tokens"].update(eos=[BOS]),
        lambda said: said["tokens"].update(bos=EOS),
        lambda said: said["tokens"].update(suppressed=[3]),
        lambda said: said["tokens"].update(forced_first=3),
        lambda said: said.update(context_length=said["context_length"] - 1),
    ],
)
def test_other_roles_of_tokens_fail(bundle: Path, edit: Callable[[Json], None]) -> None:
    change(bundle, "manifest.json", edit)

    report = verify(bundle, exact=False, isolate=False)

    assert report.verdict == "FAIL"
    assert "roles of tokens" in report.device_summary


def test_labels_in_another_order_mean_something_else(tmp_path: Path) -> None:
    for name, labels in (("one", LABELS), ("other", LABELS[::-1])):
        tiny_encoder.write_bundle(tmp_path / name, labels=labels)
    one, other = (open_bundle(tmp_path / name).manifest for name in ("one", "other"))

    assert meanings_of(one) == meanings_of(one)
    assert meanings_of(one) != meanings_of(other)


def test_other_tokenizer_fails(bundle: Path) -> None:
    def swap(said: Json) -> None:
        vocabulary = said["model"]["vocab"]
        first, second = sorted(vocabulary)[3:5]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]

    change(bundle, "tokenizer.json", swap)

    report = verify(bundle, exact=False, isolate=False)

    assert report.verdict == "FAIL"
    assert "tokenizer.json" in report.device_summary


def test_tokenizer_that_cannot_be_read_fails(bundle: Path) -> None:
    change(bundle, "tokenizer.json", lambda said: {"version": said["version"]})

    assert verify(bundle, exact=False, isolate=False).verdict == "FAIL"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean_kl", limits.MAX_MEAN_KL * 1.01),
        ("max_abs_delta", 1.01),
        ("near_tie", 1.01),
        ("mean_cosine", limits.MAX_COSINE_DISTANCE * 1.01),
    ],
)
def test_bounds_that_hold_nothing_back_are_refused(bundle: Path, name: str, value: float) -> None:
    change(bundle, JSON_NAME, lambda said: said["thresholds"].update({name: value}))

    with pytest.raises(CertificateError, match=name):
        read_certificate(open_bundle(bundle))


def test_library_that_reads_otherwise_fails(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: encode(self, text)[::-1])

    report = verify(bundle, exact=False, isolate=False)

    assert report.verdict == "FAIL"
    assert "ids or texts that the tokenizer gives" in report.device_summary


def test_bytes_take_every_probe() -> None:
    library = tokenizers.Tokenizer(tokenizers.models.BPE(byte_alphabet(), []))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = Tokenizer.from_bytes(library.to_str().encode())

    readings = read_probes(tokenizer)

    assert [each.text for each in readings] == list(PROBE_TEXTS)
    assert [each.decoded for each in readings] == list(PROBE_TEXTS)


def byte_alphabet() -> dict[str, int]:
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    return {letter: place for place, letter in enumerate(letters)}
