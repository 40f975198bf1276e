"""Checkpoints and adapters by name on the Hugging Face Hub."""

from functools import partial
from pathlib import Path
from typing import TypeVar

from ortolan.export.options import Via
from ortolan.export.progress import Progress
from ortolan.export.source import way_of
from ortolan.hub.fetch import fetch_adapter, fetch_checkpoint
from ortolan.hub.name import name_of
from ortolan.modeling.checkpoint.checkpoint import open_checkpoint

__all__ = ["located", "located_adapter"]

S = TypeVar("S")


def located(
    source: S,
    *,
    revision: str | None = None,
    via: Via | None = None,
    progress: Progress | None = None,
) -> S | Path:
    """The path in the cache of what a name on the Hub means; any other source as it is.

    A repository whose model needs code of its own is refused before its weights are fetched.

    Args:
        source: of an export.
        revision: branch, tag or commit, if it is not in the name.
        via: how the checkpoint will be opened.
        progress: called as bytes arrive.

    Raises:
        ConfigError: neither a family nor transformers has such a model.
        HubError: the Hub refuses, or cannot be reached.
        RepositoryError: there is no such repository, or it is not a checkpoint.
    """
    name = name_of(source, revision)
    if name is None:
        return source
    return fetch_checkpoint(name, check=partial(_check, via=via), progress=progress)


def located_adapter(source: str | Path, *, progress: Progress | None = None) -> Path:
    """The folder of a PEFT adapter: in the cache for a name on the Hub.

    Raises:
        HubError: the Hub refuses, or cannot be reached.
        RepositoryError: there is no such repository, or it is not an adapter.
    """
    name = name_of(source)
    return Path(source) if name is None else fetch_adapter(name, progress=progress)


def _check(folder: Path, *, via: Via | None) -> None:
    way_of(open_checkpoint(folder), via)
