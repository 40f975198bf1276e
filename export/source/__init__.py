"""What is exported: a checkpoint of a family, any model of transformers, or a user's own module."""

from collections.abc import Callable
from pathlib import Path

from torch import nn

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.source.family import open_family, open_model
from ortolan.export.source.module import open_module
from ortolan.modeling.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ortolan.modeling.models.stack import TransformerModel

__all__ = ["Source", "open_exportable"]

Source = str | Path | Checkpoint | nn.Module
"""A checkpoint (see `open_checkpoint`), a model of `ortolan.modeling`, or a user's own module."""


def open_exportable(
    source: Source,
    *,
    tokenizer: str | Path | None,
    max_context: int | None,
    accept_unknown: tuple[str, ...] = (),
) -> Exportable:
    """Open a source of any kind; see `open_family` for the arguments and what is raised."""
    if isinstance(source, nn.Module):
        _refuse_keys(accept_unknown)
        own = isinstance(source, TransformerModel)
        open_live: Callable[..., Exportable] = open_model if own else open_module
        return open_live(source, tokenizer=tokenizer, max_context=max_context)
    return open_family(
        open_checkpoint(source),
        tokenizer=tokenizer,
        max_context=max_context,
        accept_unknown=accept_unknown,
    )


def _refuse_keys(accept_unknown: tuple[str, ...]) -> None:
    if accept_unknown:
        raise OptionError(
            f"accept_unknown: expected a checkpoint with {', '.join(accept_unknown)} in its "
            "config.json, got a live module. Leave it out."
        )
