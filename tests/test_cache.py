"""The cache of bundles: one maker, whole entries, typed errors."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ortolan import staging
from ortolan.cache import CacheError, cache_folder, entries, kept, key_of, remove

KEY = "org--name-int8-0123456789abcdef"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    return cache_folder() / "bundles"


def maker(text: str = "made", calls: list[str] | None = None) -> Callable[[Path], None]:
    def make(target: Path) -> None:
        (target / "manifest.json").write_text(text)
        (target / "within").mkdir()
        (target / "within" / "weights.bin").write_bytes(b"12345")
        if calls is not None:
            calls.append(text)

    return make


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_entry_is_made_once_until_it_is_removed(folder: Path) -> None:
    assert entries() == []
    calls: list[str] = []
    path = kept(KEY, maker("first", calls))
    assert path == folder / KEY
    assert kept(KEY, maker("second", calls)) == path
    assert calls == ["first"]
    assert (path / "manifest.json").read_text() == "first"
    remove(KEY)
    assert names(folder) == []
    assert (kept(KEY, maker("third")) / "manifest.json").read_text() == "third"


def test_only_whole_entries_stay(folder: Path) -> None:
    half = folder / ".other.new" / "other"  # of a killed process
    half.mkdir(parents=True)
    (half / "manifest.json").touch()
    assert entries() == []

    def fail(target: Path) -> None:
        maker()(target)
        raise ValueError("no")

    def scatter(target: Path) -> None:
        maker()(target)
        target.with_name("scratch").touch()

    with pytest.raises(ValueError, match="no"):
        kept(KEY, fail)
    assert names(folder) == []
    kept(KEY, scatter)
    assert names(folder) == [KEY]
    assert names(folder / KEY) == ["manifest.json", "within"]


def test_entries_are_listed_by_last_use_with_their_sizes() -> None:
    old, new = kept("old", maker()), kept("new", maker())
    os.utime(old, (1000, 1000))
    assert [(entry.key, entry.size) for entry in entries()] == [("new", 9), ("old", 9)]
    assert entries()[1].used == 1000
    os.utime(new, (2000, 2000))
    kept("old", maker())
    assert [entry.key for entry in entries()] == ["old", "new"]


def test_key_is_readable_and_depends_on_all_contents() -> None:
    key = key_of("org/My Model-int8", "commit", {"b": 1, "a": None})
    assert key.startswith("org--My-Model-int8-")
    assert key == key_of("org/My Model-int8", "commit", {"a": None, "b": 1})
    assert key != key_of("org/My Model-int8", "other", {"a": None, "b": 1})
    assert kept(key_of("../..", 1), maker()).parent == cache_folder() / "bundles"
    assert kept(key_of("x" * 500), maker()).is_dir()


def test_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, "here")
    assert cache_folder().is_relative_to(Path.home())


@pytest.mark.parametrize("key", ["..", "", ".hidden", "a/b", "../x", "a\\b", "x" * 201])
def test_keys_that_leave_the_folder_are_rejected(key: str, tmp_path: Path) -> None:
    for action in (lambda: kept(key, maker()), lambda: remove(key)):
        with pytest.raises(CacheError, match="not a key"):
            action()
    assert names(tmp_path) == []


def test_what_cannot_be_removed_or_made_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="ortolan cache list"):
        remove(KEY)
    (tmp_path / "ortolan").touch()
    with pytest.raises(CacheError, match="set XDG_CACHE_HOME"):
        kept(KEY, maker())


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_cache_that_may_not_be_written_is_one_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CacheError, match=r"Check the permissions\. Or set XDG_CACHE_HOME"):
        kept(KEY, maker())


@pytest.mark.skipif(os.name == "nt", reason="no locks")
def test_second_maker_waits_and_uses_what_the_first_made() -> None:
    started, go, waits = threading.Event(), threading.Event(), threading.Event()

    def slow(target: Path) -> None:
        started.set()
        go.wait(10)
        maker("first")(target)

    first = threading.Thread(target=kept, args=(KEY, slow))
    first.start()
    started.wait(10)
    with pytest.raises(CacheError, match=r"no org--name"):
        remove(KEY)
    calls: list[str] = []
    results: list[Path] = []
    second = threading.Thread(
        target=lambda: results.append(kept(KEY, maker("second", calls), waiting=waits.set))
    )
    second.start()
    assert waits.wait(10)
    assert not results
    go.set()
    first.join()
    second.join()
    assert calls == []
    assert (results[0] / "manifest.json").read_text() == "first"


@pytest.mark.skipif(os.name == "nt", reason="no locks")
def test_who_waited_for_a_maker_that_failed_makes_alone(folder: Path) -> None:
    started, waits, makes, enough = (threading.Event() for _ in range(4))

    def fail(_: Path) -> None:
        started.set()
        waits.wait(10)
        raise ValueError

    def slow(target: Path) -> None:
        makes.set()
        enough.wait(10)
        maker()(target)

    def first() -> None:
        with contextlib.suppress(ValueError):
            kept(KEY, fail)

    def second() -> None:
        kept(KEY, slow, waiting=waits.set)

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert started.wait(10)
    threads[1].start()
    assert makes.wait(10)
    place = staging.Place(folder / KEY, index="manifest.json")
    with pytest.raises(BlockingIOError), staging.locked(place):
        pass
    enough.set()
    for thread in threads:
        thread.join()
    assert names(folder) == [KEY]


KILLED = """\
import sys, time
from pathlib import Path
from ortolan.cache import kept

def make(target: Path) -> None:
    (target / "manifest.json").write_text("half")
    print("half", flush=True)
    time.sleep(60)

kept(sys.argv[1], make)
"""


@pytest.mark.skipif(os.name == "nt", reason="no locks")
def test_entry_of_a_killed_process_is_made_by_one_that_waits(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, KEY], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert entries() == []
        killer = threading.Timer(0.2, process.kill)
        began = time.monotonic()
        path = kept(KEY, maker("whole"), waiting=killer.start)
        assert time.monotonic() - began >= 0.1
    assert (path / "manifest.json").read_text() == "whole"
    assert names(folder) == [KEY]
