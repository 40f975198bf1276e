"""Whatever goes wrong with a file, complete old or complete new files remain."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.hostile.file_faults import FAULTS, Fault, Fork, Outcome
from tests.hostile.file_work import WORKS, Work
from tests.runtime import packed_bundles

from ortolan.runtime.pack.write import pack

DEAR = ("pack", "checkpoint")
"""Work of some tenths of a second; most takes some hundredths."""

LONG = ("export", "training")
"""Work of more than a hundred operations."""


@pytest.fixture(scope="module", autouse=True)
def _key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep seals out of the user's folders."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
            patch.setenv(name, str(tmp_path_factory.mktemp("state")))
        yield


class Faults:
    """Lets the operations of some work fail, one at a time."""

    def __init__(self, name: str, folder: Path) -> None:
        self._folder = folder
        (folder / "needed").mkdir()
        self._work: Work = WORKS[name](folder / "needed")
        self._before = folder / "before"
        self._before.mkdir()
        self._work.write(self._before, "old")
        shutil.copytree(self._before, self._place)
        whole = self._attempt()
        assert (whole.error, self._state()) == ("", "new")
        past = [path for path in whole.past if path.startswith(f"{self._place}")]
        assert past == [], "a file is written past the counted operations"
        self.operations = whole.operations
        self._after = self._names()

    @property
    def _place(self) -> Path:
        return self._folder / "place"

    def _state(self) -> str | None:
        return self._work.state(self._place)

    def _names(self) -> list[str]:
        return sorted(f"{path.relative_to(self._place)}" for path in self._place.rglob("*"))

    def _attempt(self, fault: Fault = "EIO", at: int = 0) -> Outcome:
        return Fork(lambda: self._work.write(self._place, "new"), fault=fault, at=at).outcome()

    def check(self, fault: Fault, at: int) -> str | None:
        """Let an operation fail, check the files, and repeat the work without a fault.

        Returns:
            The state after the fault.
        """
        shutil.rmtree(self._place)
        shutil.copytree(self._before, self._place)
        old = self._state()
        outcome, state = self._attempt(fault, at), self._state()
        where = f"{fault} at {at} of {self.operations}: {outcome}, {state}"
        if fault in ("EINTR", "short"):
            assert (outcome.error, state) == ("", "new"), where
        elif outcome.error == "SIGKILL":
            assert state in (old, "new") or (state is None and self._work.has_gap), where
        elif outcome.error:
            assert outcome.is_typed, where
            assert "\n" not in outcome.message, where
            assert state in (old, "new"), where
        elif not self._work.is_optional:
            assert state == "new", where
        self._work.write(self._place, "new")
        assert (self._state(), self._names()) == ("new", self._after), where
        return state


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Faults]:
    return cache(lambda name: Faults(name, tmp_path_factory.mktemp("faults")))


def spread(operations: int, points: int, fault: Fault) -> list[int]:
    """Return some operations, including the first and the last; they differ between faults."""
    between = max(1, (operations - 2) // points)
    inner = range(2 + FAULTS.index(fault) % between, operations, between)
    return [1, *inner, operations]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", [name for name in WORKS if name not in LONG])
def test_a_fault_at_any_operation_leaves_old_or_new_files(
    name: str, fault: Fault, faults: Callable[[str], Faults]
) -> None:
    checked = faults(name)
    seen = [checked.check(fault, at) for at in range(1, checked.operations + 1)]
    order = ["old", None, "new"]
    assert fault != "SIGKILL" or seen == sorted(seen, key=order.index)


QUICK = [
    (name, FAULTS[place % len(FAULTS)]) for place, name in enumerate(WORKS) if name not in LONG
]
"""One fault for each work, one work or more for each fault; the others are slow."""


@pytest.mark.parametrize(("name", "fault"), QUICK)
def test_a_fault_at_some_operations_leaves_old_or_new_files(
    name: str, fault: Fault, faults: Callable[[str], Faults]
) -> None:
    operations = faults(name).operations
    # one operation per fault for expensive work, a fifth of all operations apart
    one = 1 + operations * (2 * FAULTS.index(fault) + 1) // (2 * len(FAULTS))
    for at in [one] if name in DEAR else spread(operations, 3, fault):
        faults(name).check(fault, at)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", LONG)
def test_a_fault_at_more_operations_leaves_old_or_new_files(
    name: str, fault: Fault, faults: Callable[[str], Faults]
) -> None:
    for at in spread(faults(name).operations, 4, fault):
        faults(name).check(fault, at)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", LONG)
def test_every_fault_in_long_work_leaves_old_or_new_files(
    name: str, fault: Fault, faults: Callable[[str], Faults]
) -> None:
    for at in range(1, faults(name).operations + 1):
        faults(name).check(fault, at)


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of the size of files")
@pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.9])
def test_a_full_disk_while_onnxruntime_writes_is_an_error_and_leaves_nothing(
    part: float, tmp_path: Path
) -> None:
    """onnxruntime writes packed weights itself, and may not report an error."""
    import resource

    bundle = packed_bundles.write(tmp_path / "bundle", "int4")
    largest = max(bundle.file(name).stat().st_size for name in bundle.manifest.weights)

    def limited() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(part * largest), hard))
        pack(bundle)

    names = sorted(os.listdir(bundle.path))
    outcome = Fork(limited).outcome()
    assert outcome.is_typed, outcome
    assert "\n" not in outcome.message
    assert sorted(os.listdir(bundle.path)) == names
    pack(bundle)
