"""Rows: reads inputs of an encoder and computes their outputs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.errors import OrtolanError
from ortolan.runtime.bundle.interface import OUTPUT
from ortolan.runtime.bundle.manifest import Output
from ortolan.runtime.bundle.source import LENGTHS, MEL
from ortolan.runtime.encoding.call import Item, Row
from ortolan.runtime.errors import GraphError, InputError, NumericError
from ortolan.runtime.inputs.source import Source, SourceReader, as_list

if TYPE_CHECKING:
    from ortolan.runtime.engine.engine import Engine

WINDOW_TOKENS, STRIDE = 384, 128
"""Length of a window of a context, and default overlap of two, in tokens, as in transformers."""


class Rows:
    """Reads inputs and computes their outputs. Threads may share it."""

    def __init__(self, engine: "Engine", reader: SourceReader, output: Output) -> None:
        self._engine = engine
        self._reader = reader
        self._output = output

    def items(self, inputs: Any, *, truncate: bool, spans: bool = False) -> list[Item]:
        """Check one input or several. Images are checked when they are computed."""
        batch = as_list(inputs)
        is_alone = len(batch) == 1
        length = self._reader.deferred
        if length is not None:
            self._reader.checked_truncate(truncate)
            return [
                Item(index=index, is_alone=is_alone, length=length, image=value)
                for index, value in enumerate(batch)
            ]
        read = self._reader.read_spans if spans else self._reader.read
        items = []
        for index, value in enumerate(batch):
            try:
                items.append(self.item(read(value, truncate=truncate), index, is_alone=is_alone))
            except InputError as error:
                if is_alone:
                    raise
                raise type(error)(f"input {index}: {error}") from error
        return items

    def windows(self, question: str, context: str, *, stride: int | None) -> list[Item]:
        """Read a question with each part of its context; same errors as `read_windows`."""
        most = min(WINDOW_TOKENS, self._reader.max_tokens)
        overlap = min(most // 2, STRIDE) if stride is None else stride
        windows = self._reader.read_windows(question, context, max_tokens=most, stride=overlap)
        is_alone = len(windows) == 1
        return [self.item(ids, index, is_alone=is_alone) for index, ids in enumerate(windows)]

    def compute(self, items: Sequence[Item]) -> list[Row | OrtolanError]:
        """Compute the outputs of a batch, by one call of the graph if all have one size.

        Returns errors of single inputs in their places.
        """
        sources = [self._source(item) for item in items]
        valid = [source for source in sources if not isinstance(source, OrtolanError)]
        if not valid:
            return [source for source in sources if isinstance(source, OrtolanError)]
        parts = [[source] for source in valid] if self._reader.is_alone else [valid]
        outputs = iter([row for part in parts for row in self._encoded(part)])
        return [
            source if isinstance(source, OrtolanError) else _checked(next(outputs), source, item)
            for item, source in zip(items, sources, strict=True)
        ]

    def item(self, ids: Source, index: int, *, is_alone: bool) -> Item:
        """An input that was read."""
        length = self._reader.length(ids)
        return Item(index=index, is_alone=is_alone, length=length, ids=ids)

    def _source(self, item: Item) -> Source | OrtolanError:
        if item.ids is not None:
            return item.ids
        try:
            return self._reader.read(item.image)
        except OrtolanError as error:
            return item.error(error)

    def _encoded(self, sources: Sequence[Source]) -> NDArray[np.float32]:
        """Compute the outputs of sources by one call of the graph."""
        feeds = self._reader.feeds(sources)
        output = self._engine.encode(feeds)[OUTPUT]
        self._check_shape(output.shape, len(sources))
        if MEL in feeds and LENGTHS in feeds:  # silence fills the last chunk
            output = output[:, : int(feeds[LENGTHS][0])]
        return output

    def _check_shape(self, shape: tuple[int, ...], rows: int) -> None:
        """Check the output: onnxruntime only warns if it differs from the declared shape."""
        axes = 3 if self._engine.manifest.output_kind.by_token else 2
        if (len(shape), shape[0], shape[-1]) != (axes, rows, self._output.size):
            raise GraphError(
                f"The encoder returned an array {shape} for {rows} inputs. The manifest declares "
                f"{self._output.size} values of {self._output.kind}. Export the checkpoint again."
            )


def _checked(row_: NDArray[np.float32], source: Source, item: Item) -> Row | OrtolanError:
    """One row of an output without its padding, or the error if it is not finite."""
    row = row_[: len(source)] if row_.ndim == 2 and isinstance(source, list) else row_
    if not np.isfinite(row).all():
        return NumericError(
            f"input {item.index}: the output is not finite. Run `ortolan verify` on the bundle."
        )
    return row
