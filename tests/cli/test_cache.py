"""`ortolan cache`."""

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Run

from ortolan.cache import cache_folder, kept


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))


@pytest.fixture
def keys(bundle: Path) -> list[str]:
    def copy(target: Path) -> None:
        shutil.copytree(bundle, target, dirs_exist_ok=True)

    keys = ["org--new-fp32-0123456789abcdef", "org--old-fp32-0123456789abcdef", "damaged"]
    for number, key in enumerate(keys[:2]):
        path = kept(key, copy)
        os.utime(path, (1_800_000_000 - number, 1_800_000_000 - number))
    os.utime(kept(keys[2], lambda target: (target / "manifest.json").touch()), (1000, 1000))
    return keys


def test_list_shows_name_precision_size_and_last_use(ortolan: Run, keys: list[str]) -> None:
    head, *rows = ortolan("cache").stdout.decode().splitlines()
    assert head.startswith(f"{cache_folder()} (")
    precisions = ("fp32", "fp32", "damaged")
    assert [tuple(row.split()[:2]) for row in rows] == [*zip(keys, precisions, strict=True)]
    assert "kB  2027-01-1" in rows[0]
    assert ortolan("cache", "list").stdout.decode().splitlines() == [head, *rows]


def test_list_as_json_has_the_same(ortolan: Run, keys: list[str], bundle: Path) -> None:
    listed = json.loads(ortolan("cache", "list", "--json").stdout)
    assert listed["folder"] == str(cache_folder())
    assert [entry["name"] for entry in listed["bundles"]] == keys
    size = sum(path.stat().st_size for path in bundle.iterdir())
    assert listed["bundles"][0] == {
        "name": keys[0],
        "path": str(cache_folder() / "bundles" / keys[0]),
        "precision": "fp32",
        "bytes": size,
        "last_used": 1_800_000_000,
    }
    assert listed["bundles"][2]["precision"] is None


def test_remove_takes_those_that_are_named(ortolan: Run, keys: list[str]) -> None:
    assert b"removed 1 bundle (" in ortolan("cache", "remove", keys[1]).stdout
    left = json.loads(ortolan("cache", "--json").stdout)["bundles"]
    assert [entry["name"] for entry in left] == [keys[0], keys[2]]


def test_remove_all_leaves_nothing(ortolan: Run, keys: list[str]) -> None:
    done = json.loads(ortolan("cache", "remove", "--all", "--json").stdout)
    assert done["removed"] == keys
    assert list((cache_folder() / "bundles").iterdir()) == []
    assert ortolan("cache").stdout.decode() == f"{cache_folder()} (0 B)\n"


def test_remove_all_takes_what_killed_processes_left(ortolan: Run) -> None:
    half = cache_folder() / "bundles" / ".half.new" / "half"
    half.mkdir(parents=True)
    assert b"removed 0 bundles" in ortolan("cache", "remove", "--all").stdout
    assert list((cache_folder() / "bundles").iterdir()) == []
