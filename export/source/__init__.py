"""What is exported: a checkpoint of a family, any model of transformers, or a user's own module."""

from pathlib import Path

from ortolan.export.exportable import Exportable
from ortolan.export.source.family import open_family
from ortolan.modeling.models.stack import TransformerModel

__all__ = ["Source", "open_exportable"]

Source = str | Path | TransformerModel
"""A checkpoint folder, or a model of `ortolan.modeling`."""


def open_exportable(
    source: Source, *, tokenizer: str | Path | None, max_context: int | None
) -> Exportable:
    """Open a source of any kind; see `open_family`."""
    opened = Path(source) if isinstance(source, str) else source
    return open_family(opened, tokenizer=tokenizer, max_context=max_context)
