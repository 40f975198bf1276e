"""Changes around the model are detected even if all hashes are right."""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tokenizers
from tests.runtime import tiny_encoder
from tests.runtime.damaged_bundles import Json, edit_json, put
from tests.runtime.tiny_decoder import BOS, EOS, tokenizer_json, write_bundle
from tests.runtime.tiny_encoder import LABELS

from ortolan.export.proof.pixels import reference_pixels
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.inputs.tokenizer import Tokenizer, open_tokenizer
from ortolan.runtime.verification.certificate_files import JSON_NAME
from ortolan.runtime.verification.probes import probe_picture, sampled
from ortolan.runtime.verification.replay import verify
from ortolan.runtime.verification.report import Report
from ortolan.runtime.verification.surroundings import (
    PROBE_TEXTS,
    Meanings,
    Surroundings,
    SurroundingsReport,
    check_surroundings,
    read_probes,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle with surroundings in its certificate."""
    folder = tmp_path / "bundle"
    write_bundle(folder, tokenizer=tokenizer_json(), tokens=Tokens(bos=BOS, eos=(EOS,)))
    bundle = open_bundle(folder)
    manifest, tokenizer = bundle.manifest, open_tokenizer(bundle)
    assert tokenizer is not None
    expected = Surroundings(
        meanings=Meanings.of(manifest).sha256,
        files={
            f.name: f.sha256 for f in manifest.files if f.name.endswith((".onnx", "tokenizer.json"))
        },
        readings=read_probes(tokenizer),
    )
    edit_json(folder, JSON_NAME, put("surroundings", value=msgspec.to_builtins(expected)))
    return folder


def report_of(folder: Path) -> Report:
    return verify(folder, exact=False, isolate=False)


def test_an_undamaged_bundle_passes(folder: Path) -> None:
    report = report_of(folder)
    assert report.verdict == "PASS"
    assert report.surroundings is not None
    assert report.surroundings.readings > 0
    assert "texts to ids and back" in report.surroundings.summary


def swap(document: Json) -> None:
    """Exchange two tokens of the vocabulary."""
    vocabulary = document["model"]["vocab"]
    first, second = sorted(vocabulary)[3:5]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


@pytest.mark.parametrize(
    ("name", "edit", "words"),
    [
        ("manifest.json", put("tokens", "eos", value=[BOS]), "roles of tokens"),
        ("manifest.json", put("tokens", "bos", value=EOS), "roles of tokens"),
        ("manifest.json", put("tokens", "suppressed", value=[3]), "roles of tokens"),
        ("manifest.json", put("tokens", "forced_first", value=3), "roles of tokens"),
        ("manifest.json", put("context_length", value=1099), "roles of tokens"),
        ("tokenizer.json", swap, "tokenizer.json"),
        ("tokenizer.json", lambda document: document.pop("model"), "tokenizer.json"),
    ],
)
def test_a_change_fails(
    folder: Path, name: str, edit: Callable[[Json], object], words: str
) -> None:
    edit_json(folder, name, edit)
    report = report_of(folder)
    assert report.verdict == "FAIL"
    assert words in report.device_summary


def test_a_library_that_encodes_differently_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: encode(self, text)[::-1])
    report = report_of(folder)
    assert report.verdict == "FAIL"
    assert "token ids or decoded texts" in report.device_summary


def test_a_byte_tokenizer_reads_every_probe() -> None:
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    alphabet = {letter: place for place, letter in enumerate(letters)}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(alphabet, []))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    readings = read_probes(Tokenizer.from_bytes(library.to_str().encode()))
    assert [reading.text for reading in readings] == list(PROBE_TEXTS)
    assert [reading.decoded for reading in readings] == list(PROBE_TEXTS)


def picture_report(tmp_path: Path, change: float = 0.0) -> SurroundingsReport:
    """Check a bundle of images; its certificate holds pixels that differ by `change`."""
    source = tiny_encoder.IMAGE
    tiny_encoder.write_bundle(tmp_path / "images", image=source)
    bundle = open_bundle(tmp_path / "images")
    pixels = reference_pixels(probe_picture(source), source).astype(np.float32) + change
    expected = Surroundings(
        meanings=Meanings.of(bundle.manifest).sha256,
        files={file.name: file.sha256 for file in bundle.manifest.files if "onnx" in file.name},
        pixels=tuple(sampled(pixels).tolist()),
    )
    return check_surroundings(bundle, None, expected, lambda _: np.zeros((0, 0), np.float32))


def test_pixels_of_a_picture_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = picture_report(tmp_path / "same")
    assert report.wrong == ()
    assert f"{report.pixels} pixels of a picture" in report.summary
    assert picture_report(tmp_path / "other", change=0.2).wrong == ("pixels of images",)
    monkeypatch.setitem(sys.modules, "PIL", None)
    report = picture_report(tmp_path / "without Pillow")
    assert (report.wrong, report.pixels) == ((), 0)
    assert "not compared: pixels of images, without Pillow" in report.summary


def test_other_labels_and_another_window_are_another_meaning(folder: Path, tmp_path: Path) -> None:
    for name, labels in (("one", LABELS), ("other", LABELS[::-1])):
        tiny_encoder.write_bundle(tmp_path / name, labels=labels)
    manifests = [open_bundle(tmp_path / name).manifest for name in ("one", "other")]
    plain = open_bundle(folder).manifest
    for size in (8, 9):
        state = msgspec.structs.replace(plain.states[0], window=size)
        manifests.append(msgspec.structs.replace(plain, states=(state,)))
    assert len({Meanings.of(manifest).sha256 for manifest in (plain, *manifests)}) == 5
