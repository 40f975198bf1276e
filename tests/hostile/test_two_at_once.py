"""Several processes that write to one place, and others that read there."""

import contextlib
import itertools
import os
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.hostile.file_faults import Fork
from tests.hostile.file_work import WORKS
from tests.runtime import packed_bundles, tiny_decoder

import ortolan
from ortolan import files
from ortolan.export.errors import OutputError
from ortolan.export.output import place_of, staged_bundle
from ortolan.runtime import open_bundle
from ortolan.runtime.bundle.packed import find_packed
from ortolan.runtime.engine.ort_session import onnxruntime_version
from ortolan.runtime.pack.write import pack
from ortolan.staging import staged

IDS = [1, 5, 3, 2]

SEEDS = (0, 1)


def logits(path: Path) -> NDArray[np.float32]:
    model = ortolan.load(path, ortolan.Decoder, threads=1)
    return model.logits(IDS)


def put(made: Path, target: Path) -> None:
    """Put a copy of a bundle there, as an export does."""
    with staged_bundle(target, force=True) as folder:
        for path in made.iterdir():
            files.copy(path, folder / path.name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Bundles with the same files, but for what is in them."""
    folders = [tmp_path_factory.mktemp("made") / "bundle" for _ in SEEDS]
    for folder, seed in zip(folders, SEEDS, strict=True):
        tiny_decoder.write_bundle(folder, seed=seed)
    return folders


def test_whoever_loads_while_bundles_are_exchanged_gets_one_of_them(
    made: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / "bundle"
    put(made[0], target)
    expected = [logits(folder) for folder in made]

    def look() -> None:
        found = logits(target)
        assert any(np.array_equal(found, each) for each in expected)

    def exchange() -> None:
        for count in itertools.count():
            put(made[count % 2], target)
            time.sleep(0.05)  # some loads: whoever is overtaken each time gives up in the end
            if (tmp_path / "enough").exists():
                break

    writer = Fork(exchange)
    try:
        for _ in range(20):
            look()
    finally:
        (tmp_path / "enough").touch()
    assert writer.outcome().error == ""
    assert sorted(os.listdir(tmp_path)) == ["bundle", "enough"]


def test_of_several_writers_some_of_them_killed_one_bundle_is_left(
    made: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / "bundle"
    put(made[0], target)
    draw = random.Random(3)

    def write() -> None:
        for count in range(10):
            put(made[count % 2], target)

    def write_until_killed() -> None:
        for count in itertools.count():
            with contextlib.suppress(OutputError):  # the other writers were first
                put(made[count % 2], target)

    errors = []
    for _ in range(8):
        forks = [Fork(write_until_killed), Fork(write), Fork(write)]
        for _ in range(draw.randrange(1, 8)):
            open_bundle(target, full_check=True)
        time.sleep(draw.uniform(0, 0.05))
        forks[0].kill()
        outcomes = [fork.outcome() for fork in forks]
        errors += [each.error for each in outcomes]
        assert all("no other export" in each.message for each in outcomes if each.message)
        open_bundle(target, full_check=True)
    assert set(errors) <= {"", "SIGKILL", "OutputError"}
    assert errors.count("SIGKILL") == 8
    put(made[1], target)  # nobody's lock is in the way
    assert os.listdir(tmp_path) == ["bundle"]


def test_the_lock_of_a_dead_process_is_nobodys(made: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "bundle"

    def hold() -> None:
        with staged(place_of(target)):
            (tmp_path / "held").touch()
            time.sleep(600)

    holder = Fork(hold)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with pytest.raises(ortolan.OrtolanError, match="expected no other export"):
        put(made[0], target)
    holder.kill()
    holder.outcome()
    put(made[0], target)
    assert sorted(os.listdir(tmp_path)) == ["bundle", "held"]


def test_of_two_exports_at_once_one_is_done_and_the_other_says_why_not(tmp_path: Path) -> None:
    (tmp_path / "needed").mkdir()
    (tmp_path / "place").mkdir()
    exports = WORKS["export"](tmp_path / "needed")
    forks = [Fork(lambda: exports.new(tmp_path / "place")) for _ in range(2)]
    outcomes = [fork.outcome() for fork in forks]
    assert "" in [each.error for each in outcomes]
    assert all("expected no other export" in each.message for each in outcomes if each.error)
    assert exports.state(tmp_path / "place") == "new"
    assert os.listdir(tmp_path / "place") == ["bundle"]


def test_of_two_packings_at_once_one_is_done_and_the_other_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "state"))
    bundle = packed_bundles.write(tmp_path / "bundle", "int4")
    forks = [Fork(lambda: pack(bundle)) for _ in range(2)]
    outcomes = [fork.outcome() for fork in forks]
    assert "" in [each.error for each in outcomes]
    assert all("expected no other packing" in each.message for each in outcomes if each.error)
    found = find_packed(bundle, onnxruntime=onnxruntime_version(), full_check=True)
    assert found is not None
    assert not [name for name in os.listdir(bundle.path) if name.startswith(".")]


def test_a_bundle_in_use_gives_the_same_answers_while_others_take_its_place(
    made: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / "bundle"
    put(made[0], target)
    model = ortolan.load(target, ortolan.Decoder, threads=1)
    before = model.logits(IDS)
    for folder in (made[1], made[1], made[0]):
        put(folder, target)
        np.testing.assert_array_equal(model.logits(IDS), before)
    shutil.rmtree(target)
    np.testing.assert_array_equal(model.logits(IDS), before)
