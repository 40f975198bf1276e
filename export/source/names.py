"""Checkpoints and adapters by name on the Hugging Face Hub."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ortolan.export.options import Via
from ortolan.export.progress import Progress
from ortolan.export.source import way_of
from ortolan.hub.client import Listing
from ortolan.hub.fetch import fetch_adapter, fetch_checkpoint
from ortolan.hub.name import Name, name_of
from ortolan.modeling.checkpoint.checkpoint import Checkpoint, open_checkpoint

S = TypeVar("S")


def located(
    source: S,
    *,
    revision: str | None = None,
    via: Via | None = None,
    progress: Progress | None = None,
) -> S | Path:
    """The path in the cache of what a name on the Hub means; any other source as it is."""
    name = name_of(source, revision)
    return source if name is None else fetched(name, via=via, progress=progress)


def fetched(
    source: Name | Listing,
    *,
    via: Via | None = None,
    check: Callable[[Checkpoint], None] = lambda _: None,
    progress: Progress | None = None,
) -> Path:
    """Fetch a checkpoint, and return its path in the cache.

    Before its weights, a model that needs code of its own is refused, and any that `check` raises
    for.
    """

    def check_folder(folder: Path) -> None:
        checkpoint = open_checkpoint(folder)
        way_of(checkpoint, via)
        check(checkpoint)

    return fetch_checkpoint(source, check=check_folder, progress=progress)


def located_adapter(source: str | Path, *, progress: Progress | None = None) -> Path:
    """The folder of a PEFT adapter: in the cache for a name on the Hub."""
    name = name_of(source)
    return Path(source) if name is None else fetch_adapter(name, progress=progress)
