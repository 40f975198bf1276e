"""Processes that write to and read from one place at once."""

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
from ortolan.export.output import staged_bundle
from ortolan.runtime import open_bundle
from ortolan.staging import Place, staged

IDS = [1, 5, 3, 2]

SEEDS = (0, 1)


def logits(path: Path) -> NDArray[np.float32]:
    model = ortolan.load(path, ortolan.Decoder, threads=1)
    return model.logits(IDS)


def put(bundle: Path, target: Path) -> None:
    """Write a copy of a bundle as an export does."""
    with staged_bundle(target, force=True) as folder:
        for path in bundle.iterdir():
            files.copy(path, folder / path.name)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Bundles with the same file names and different contents."""
    folders = [tmp_path_factory.mktemp("pair") / "bundle" for _ in SEEDS]
    for folder, seed in zip(folders, SEEDS, strict=True):
        tiny_decoder.write_bundle(folder, seed=seed)
    return folders


@pytest.mark.slow
def test_loading_while_bundles_are_exchanged_returns_one_of_them(
    pair: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / "bundle"
    put(pair[0], target)
    expected = [logits(folder) for folder in pair]

    def look() -> None:
        result = logits(target)
        assert any(np.array_equal(result, known) for known in expected)

    def exchange() -> None:
        for count in itertools.count():
            put(pair[count % 2], target)
            time.sleep(0.05)  # lets some loads finish: one that is overtaken every time gives up
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


def test_several_writers_some_of_them_killed_leave_one_bundle(
    pair: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / "bundle"
    put(pair[0], target)
    draw = random.Random(3)

    def write() -> None:
        for count in range(10):
            put(pair[count % 2], target)

    def write_until_killed() -> None:
        for count in itertools.count():
            with contextlib.suppress(OutputError):  # the other writers were first
                put(pair[count % 2], target)

    errors = []
    for _ in range(8):
        forks = [Fork(write_until_killed), Fork(write), Fork(write)]
        for _ in range(draw.randrange(1, 8)):
            open_bundle(target, full_check=True)
        time.sleep(draw.uniform(0, 0.05))
        forks[0].kill()
        outcomes = [fork.outcome() for fork in forks]
        errors += [outcome.error for outcome in outcomes]
        assert all("another process" in outcome.message for outcome in outcomes if outcome.message)
        open_bundle(target, full_check=True)
    assert set(errors) <= {"", "SIGKILL", "OutputError"}
    assert errors.count("SIGKILL") == 8
    put(pair[1], target)  # no lock is left
    assert os.listdir(tmp_path) == ["bundle"]


def test_the_lock_of_a_dead_process_is_released(pair: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "bundle"

    def hold() -> None:
        with staged(Place(target, index="manifest.json")):
            (tmp_path / "held").touch()
            time.sleep(600)

    holder = Fork(hold)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with pytest.raises(OutputError):
        put(pair[0], target)
    holder.kill()
    holder.outcome()
    put(pair[0], target)
    assert sorted(os.listdir(tmp_path)) == ["bundle", "held"]


@pytest.mark.parametrize(("name", "error"), [("export", "OutputError"), ("pack", "BundleError")])
def test_of_two_at_once_one_succeeds_and_the_other_says_why_not(
    name: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "state"))
    (tmp_path / "needed").mkdir()
    place = tmp_path / "place"
    place.mkdir()
    work = WORKS[name](tmp_path / "needed")
    if name == "pack":
        packed_bundles.write(place / "bundle", "int4")
    forks = [Fork(lambda: work.write(place, "new")) for _ in range(2)]
    errors = [fork.outcome().error for fork in forks]
    assert "" in errors
    assert {*errors} <= {"", error}
    assert work.state(place) == "new"
    assert os.listdir(place) == ["bundle"]
    assert not [path for path in place.rglob(".*")]


def test_a_loaded_bundle_is_unaffected_by_its_replacement(pair: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    put(pair[0], target)
    model = ortolan.load(target, ortolan.Decoder, threads=1)
    before = model.logits(IDS)
    for folder in (pair[1], pair[1], pair[0]):
        put(folder, target)
        np.testing.assert_array_equal(model.logits(IDS), before)
    shutil.rmtree(target)
    np.testing.assert_array_equal(model.logits(IDS), before)
