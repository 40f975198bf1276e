"""Fetches what a name stands for: a checkpoint, an adapter or a bundle."""

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Literal

from ortolan.hub import RepositoryError
from ortolan.hub.client import Listing, Progress, download, list_files
from ortolan.hub.name import Name
from ortolan.hub.selection import (
    MANIFEST,
    adapter_files,
    bundle_folder,
    bundle_folders,
    describing_files,
    gguf_files,
    listed_files,
    manifests,
    weight_files,
)

MAX_DESCRIBING_BYTES = 512 << 20
"""Bytes of configs, tokenizers and templates together; far more than any checkpoint has."""

_SNAPSHOT = re.compile(
    r"(?<![^/])models--([\w.-]+?)--([\w.-]+)/snapshots/([0-9a-f]{40})(?![^/])", re.ASCII
)
"""Owner, name and commit of a folder in the cache of the Hub."""


def kind_of(listing: Listing) -> Literal["bundle", "checkpoint"]:
    """What a repository holds under the name that was asked for."""
    folders = bundle_folders(listing.sizes)
    part = listing.name.part
    return "bundle" if folders and (part is None or part in folders) else "checkpoint"


def fetch_checkpoint(
    source: Name | Listing,
    *,
    check: Callable[[Path], None] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch a checkpoint: its configs and tokenizer, then its weights; or one GGUF file.

    Code is never fetched, and pickles only where there are no safetensors. `check` is called with
    the folder before the weights are fetched, and raises to refuse them.
    """
    listing = source if isinstance(source, Listing) else list_files(source)
    names = listing.sizes.keys()
    is_gguf = "config.json" not in names or listing.name.part is not None
    if is_gguf and (chosen := gguf_files(names, listing.name)):
        return download(listing, chosen, progress=progress) / chosen[0]
    if listing.name.part is not None:
        raise RepositoryError(f"{listing.name}: no GGUF file, and no folder with {MANIFEST}.")
    describing = describing_files(names)
    if "config.json" not in describing:
        raise RepositoryError(f"{listing.name} is not a checkpoint: it has no config.json.")
    if (size := sum(listing.sizes[file] for file in describing)) > MAX_DESCRIBING_BYTES:
        raise RepositoryError(
            f"{listing.name} has {size / 1e6:.0f} MB of configs, over "
            f"{MAX_DESCRIBING_BYTES / 1e6:.0f}. Do not trust this repository."
        )
    folder = download(listing, describing, progress=progress)
    if check is not None:
        check(folder)
    weights = weight_files(names, folder, listing.name)
    return download(listing, [*describing, *weights], progress=progress)


def fetch_adapter(name: Name, *, progress: Progress | None = None) -> Path:
    """Fetch a PEFT adapter, and return its folder in the cache."""
    listing = list_files(name)
    return download(listing, adapter_files(listing.sizes, name), progress=progress)


def fetch_bundle(
    source: Name | Listing, *, progress: Progress | None = None
) -> dict[PurePosixPath, Path]:
    """Fetch the files of a bundle and of the bundles in it."""
    listing = source if isinstance(source, Listing) else list_files(source)
    folder = bundle_folder(listing.sizes, listing.name)
    files = files_of_bundle(listing, folder)
    place = download(listing, files, progress=progress)
    return {PurePosixPath(file).relative_to(folder): place / file for file in files}


def files_of_bundle(listing: Listing, folder: str) -> list[str]:
    """Paths of all files of the bundle in a folder. Its manifests are fetched."""
    index = manifests(listing.sizes, folder)
    place = download(listing, index, progress=lambda *_: None)
    return [file for manifest in index for file in listed_files(listing.sizes, place, manifest)]


def origin_of(path: Path) -> str | None:
    """`org/name@commit` of a folder or file in the cache of the Hub; `None` elsewhere."""
    match = _SNAPSHOT.search(path.as_posix())
    return None if match is None else "{}/{}@{}".format(*match.groups())
