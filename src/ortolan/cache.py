"""Bundles that Ortolan keeps for the next start: exported from checkpoints, or fetched.

    ~/.cache/ortolan/bundles/org--name-0123456789abcdef

Each entry is a folder of a readable name and a hash of everything that it depends on, so a new
version of any of that is another entry. It is built next to its place by one process, while others
wait, and appears whole (`ortolan.staging`). Its time of modification is that of its last use.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ortolan import files, staging
from ortolan.errors import OrtolanError

_FOLDER = "bundles"

_INDEX = "manifest.json"

_KEY = re.compile(r"\w[\w.-]{0,199}", re.ASCII)


class CacheError(OrtolanError, code="cache"):
    """The cache cannot be written, or an entry of it does not exist or is being made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A bundle in the cache: its folder, bytes, and time of last use in seconds since 1970."""

    path: Path
    size: int
    used: float

    @property
    def key(self) -> str:
        """Name of its folder."""
        return self.path.name


def cache_folder() -> Path:
    """`ortolan` in `XDG_CACHE_HOME` or in ~/.cache; on Windows, `ortolan/cache` in LOCALAPPDATA."""
    return _user_folder("XDG_CACHE_HOME", "~/.cache", "ortolan/cache")


def state_folder() -> Path:
    """`ortolan` in `XDG_STATE_HOME` or in ~/.local/state; on Windows, `ortolan` in LOCALAPPDATA."""
    return _user_folder("XDG_STATE_HOME", "~/.local/state", "ortolan")


def _user_folder(variable: str, usual: str, on_windows: str) -> Path:
    is_windows = os.name == "nt"
    chosen = os.environ.get("LOCALAPPDATA" if is_windows else variable, "")
    # the XDG specification says to ignore relative paths
    folder = Path(chosen) if os.path.isabs(chosen) else Path(os.path.expanduser(usual))
    return folder / (on_windows if is_windows else "ortolan")


def key_of(label: str, *contents: object) -> str:
    """The key of an entry."""
    digest = hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", label.replace("/", "--")).lstrip(".-")
    return f"{readable[:150] or 'model'}-{digest[:16]}"


def kept(
    key: str, make: Callable[[Path], None], *, waiting: Callable[[], None] = lambda: None
) -> Path:
    """The folder of a key. It is made if it is not there."""
    found = find(key)
    if found is not None:
        return found
    place = _place(key)
    with _explained(key):
        files.make_folders(place.target.parent, mode=0o700)
        remove_abandoned()
        with staging.locked(place, waiting=waiting):
            if not place.target.is_dir():
                _make(place, make)
    return place.target


def find(key: str) -> Path | None:
    """The folder of a key if it is there; this counts as its use."""
    folder = _place(key).target
    if not folder.is_dir():
        return None
    with contextlib.suppress(OSError):  # a cache that this user may only read
        os.utime(folder)
    return folder


def entries() -> list[Entry]:
    """All entries, the last used first."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for path in (cache_folder() / _FOLDER).iterdir():
            if _KEY.fullmatch(path.name):
                with contextlib.suppress(OSError):  # it is being removed
                    used = path.stat().st_mtime
                    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
                    found.append(Entry(path=path, size=size, used=used))
    return sorted(found, key=lambda entry: entry.used, reverse=True)


def remove(key: str) -> None:
    """Remove an entry. Processes that have it open can go on."""
    place = _place(key)
    with _explained(key):
        remove_abandoned()
        if not place.target.is_dir():
            raise CacheError(f"{cache_folder()} has no {key}. See `ortolan cache list`.")
        try:
            with staging.locked(place):
                # moved first, so that no process opens half of it
                files.remove_folder(place.sibling("new"))
                files.rename(place.target, place.sibling("new"))
                files.remove_folder(place.sibling("new"))
        except BlockingIOError as error:
            raise CacheError(f"Another process is making {key}. Wait for it.") from error


def _place(key: str) -> staging.Place:
    if not _KEY.fullmatch(key):
        raise CacheError(f"{key!r:.80} is not a key of the cache. See `ortolan cache list`.")
    return staging.Place(cache_folder() / _FOLDER / key, index=_INDEX)


def _make(place: staging.Place, make: Callable[[Path], None]) -> None:
    """Build an entry in a folder within the new folder, where what `make` leaves around it goes."""
    with staging.built(place) as new:
        folder = new / place.target.name
        files.make_folder(folder)
        make(folder)
        staging.commit(folder, place)


def remove_abandoned() -> None:
    """Remove what processes that were killed left of the entries that they were making."""
    for new in (cache_folder() / _FOLDER).glob(".*.new"):
        place = _place(new.name.removeprefix(".").removesuffix(".new"))
        with contextlib.suppress(OSError), staging.locked(place):
            files.remove_folder(new)


@contextlib.contextmanager
def _explained(key: str) -> Iterator[None]:
    """Turn errors of files into errors that say what to do."""
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"Cannot keep {key} in {cache_folder()}: {files.described(error)} Or set "
            "XDG_CACHE_HOME to another folder, or export to a folder yourself with "
            "`ortolan export`."
        ) from error
