"""`load`: copied weights."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import packed_bundles, tiny_encoder

from ortolan.runtime import (
    BundleFileError,
    InputError,
    MemoryPlanError,
    limits,
    load,
    open_bundle,
)
from ortolan.runtime.pack.write import pack

KINDS = ("fp32", "split", "recurrent", "by-token", "int4", "int4-split", "int8-prefill")

PROMPT = [*range(40)]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("loading")
    return {kind: packed_bundles.write(folder / kind, kind, group=64).path for kind in KINDS}


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "state"))


def destroy(folder: Path) -> None:
    """Overwrite every file in place, cut it short, then remove all of them."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        with path.open("r+b") as file:
            file.write(b"\x7f" * path.stat().st_size)
        os.truncate(path, 10)
    shutil.rmtree(folder)


def of_decoder(model: Any) -> Any:
    return model.logits(PROMPT).tolist(), model.generate(PROMPT, max_new_tokens=12).tokens


def test_copied_weights_outlive_their_folders(
    bundles: dict[str, Path], exported: Callable[[str], Path], tmp_path: Path
) -> None:
    folders = {
        **{kind: shutil.copytree(path, tmp_path / kind) for kind, path in bundles.items()},
        "packed": shutil.copytree(bundles["int4"], tmp_path / "packed"),
        "encoder": tiny_encoder.write_bundle(tmp_path / "encoder", maps=True).path,
        "translator": shutil.copytree(exported("marian") / "bundle", tmp_path / "translator"),
    }
    pack(open_bundle(folders["packed"]))
    inputs = {"input_ids": np.array([[4, 5]]), "lengths": np.array([2], np.int32)}
    calls: dict[str, Callable[[Any], Any]] = {
        "encoder": lambda model: (
            model.classify("a b"),
            [maps.tolist() for maps in model._engine.attention(inputs).values()],
        ),
        "translator": lambda model: model.generate("abc", max_new_tokens=8).tokens,
    }
    for name, folder in folders.items():
        call = calls.get(name, of_decoder)
        expected = call(load(folder, threads=1))
        model = load(folder, threads=1, weights="copy")
        destroy(folder)
        assert call(model) == expected


def test_copying_compares_the_hash_of_the_bytes_it_uses(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(bundles["fp32"], tmp_path / "bundle")
    (weights,) = folder.glob("weights-*.bin")
    data = bytearray(weights.read_bytes())
    data[100] ^= 1
    weights.write_bytes(data)
    load(folder, threads=1)  # mapped weights are not hashed
    with pytest.raises(BundleFileError, match=r"^weights-.*: expected sha256 "):
        load(folder, threads=1, weights="copy")


def test_copies_that_do_not_fit_are_rejected(
    bundles: dict[str, Path], memory_left: Callable[[int], None]
) -> None:
    (weights,) = bundles["int4"].glob("weights-*.bin")
    memory_left(weights.stat().st_size)
    load(bundles["int4"], threads=1)
    with pytest.raises(MemoryPlanError, match=r'Load it with weights="map", which maps'):
        load(bundles["int4"], threads=1, weights="copy")


def test_a_tensor_too_large_to_copy_is_rejected(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = max(t.length for t in open_bundle(bundles["fp32"]).graphs["decoder"].external)
    monkeypatch.setattr(limits, "MAX_COPIED_BYTES", largest)
    load(bundles["fp32"], threads=1, weights="copy")
    monkeypatch.setattr(limits, "MAX_COPIED_BYTES", largest - 1)
    with pytest.raises(InputError, match=f"has {largest}"):
        load(bundles["fp32"], threads=1, weights="copy")
    load(bundles["fp32"], threads=1)


INVALID: list[dict[str, Any]] = [
    *({"weights": value} for value in ("mapped", None, True, np.array(["map", "copy"]))),
    *({"threads": value} for value in (0, -1, 1025, True, 1.5, "2")),
    {"isolate": 1},
    {"full_check": "yes"},
    {"kind": "decoder"},
    {"thread": 2},
]


@pytest.mark.parametrize("options", INVALID, ids=str)
def test_an_invalid_option_is_refused(
    options: dict[str, Any], bundles: dict[str, Path], snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: load(bundles["fp32"], **options)) == snapshot
