"""Bundles of the Hugging Face Hub, by name.

The cache of the Hub has links, which a bundle may not have. So a fetched bundle is placed in the
cache of Ortolan, as further names of the same bytes where the file system allows, and every hash is
checked once before it gets its place. It stays there, next to a note of where it is from.
"""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from ortolan import cache, files
from ortolan.hub.client import Listing, Progress, list_files
from ortolan.hub.fetch import fetch_bundle
from ortolan.hub.name import Name
from ortolan.hub.selection import bundle_folder
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle, open_parts
from ortolan.runtime.errors import BundleError

_NOTE = "fetched.json"
"""Says where a bundle is from; not a file of the bundle."""

_CHECK = "check"


def fetched(
    source: Name | Listing,
    *,
    progress: Progress | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> Path:
    """Fetch a bundle unless it is in the cache, check it, and return its folder.

    Args:
        source: a name, or the listing of its repository.
        progress: called as bytes arrive and are checked; by default `huggingface_hub` draws bars.
        waiting: called once if another process is fetching the bundle, which is then waited for.
    """
    listing = source if isinstance(source, Listing) else list_files(source)
    folder = bundle_folder(listing.sizes, listing.name)
    repository = listing.name.repository
    label = f"{repository}-{folder}" if folder else repository
    key = cache.key_of(label, repository, folder, listing.commit)

    def make(target: Path) -> None:
        for name, file in fetch_bundle(listing, progress=progress).items():
            if name != PurePosixPath(_NOTE):
                _place(file, target / name)
        _check(target, listing, progress)
        note = {"repository": repository, "folder": folder, "commit": listing.commit}
        files.write(target / _NOTE, json.dumps(note))

    return cache.kept(key, make, waiting=waiting)


def _place(origin: Path, target: Path) -> None:
    """Give a file of the Hub's cache another name.

    It is copied where links are impossible, and if another user owns it, who may change it later.
    """
    files.make_folders(target.parent)
    blob = origin.resolve()
    if os.name == "nt" or blob.stat().st_uid == os.geteuid():
        with contextlib.suppress(OSError):
            os.link(blob, target)
            return
    files.copy(blob, target)


def _check(target: Path, listing: Listing, progress: Progress | None) -> None:
    """Check every hash of a bundle and of the bundles in it."""
    name = listing.name
    try:
        bundle = _opened(target, progress)
        open_parts(bundle, full_check=True)
    except BundleError as error:
        said = f"{error}".replace(f"{target}", f"{name}").partition(". ")[0].rstrip(".")
        raise type(error)(
            f"{name} was not kept: {said}. Ask its owner, or remove {name.repository} from the "
            "cache of the Hugging Face Hub (`hf cache rm`) and try again."
        ) from error


def _opened(target: Path, progress: Progress | None) -> Bundle:
    total = sum(file.stat().st_size for file in target.iterdir() if file.is_file())
    done = 0

    def read(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(_CHECK, done, total)

    return open_bundle(target, full_check=True, progress=read)
