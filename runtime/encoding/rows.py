"""Rows: reads inputs of an encoder and computes their outputs."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortolan.errors import OrtolanError
from ortolan.runtime.bundle.interface import OUTPUT
from ortolan.runtime.bundle.manifest import Output, wrong_kind
from ortolan.runtime.bundle.source import LENGTHS, MEL
from ortolan.runtime.encoding.batches import batches
from ortolan.runtime.encoding.call import EncoderCall, Item, Row, at_input
from ortolan.runtime.errors import GraphError, InputError, NumericError
from ortolan.runtime.inputs.input_reader import InputReader, ReadInput, as_list

if TYPE_CHECKING:
    from ortolan.runtime.engine.engine import Engine

R = TypeVar("R")


class Rows:
    """Reads inputs and computes their outputs. Threads may share it."""

    def __init__(self, engine: "Engine", reader: InputReader, output: Output) -> None:
        self._engine = engine
        self.manifest = engine.manifest
        self.reader = reader
        self.output = output

    def expect(self, kind: str, *, what: str, expected: str) -> None:
        """Raise BundleKindError unless this is the kind of the output."""
        if self.output.kind != kind:
            raise wrong_kind(self.manifest, what=what, expected=expected)

    def call(
        self, inputs: Any, finish: Callable[[list[Row]], R], *, truncate: bool
    ) -> EncoderCall[R]:
        """A call of one input or several, and how their outputs become its result."""
        return EncoderCall(self.items(inputs, truncate=truncate), finish)

    def run(self, call: EncoderCall[R]) -> R:
        """Compute a call in this thread."""
        for indices in batches([item.length for item in call.items]):
            items = [call.items[index] for index in indices]
            for item, output in zip(items, self.compute(items), strict=True):
                call.put(item, output)
            if call.done():
                break
        return call.result()

    def outputs(self, items: Sequence[Item]) -> list[Row]:
        """The outputs of items, in their order."""
        return self.run(EncoderCall(items, list))

    def items(self, inputs: Any, *, truncate: bool, spans: bool = False) -> list[Item]:
        """Check one input or several. Images are checked when they are computed."""
        batch, length = as_list(inputs), self.reader.deferred
        if length is not None:
            self.reader.checked_truncate(truncate)
            return [
                Item(index=index, length=length, unread=value) for index, value in enumerate(batch)
            ]
        read = self.reader.read_spans if spans else self.reader.read
        items = []
        for index, value in enumerate(batch):
            try:
                items.append(self.item(read(value, truncate=truncate), index))
            except InputError as error:
                if len(batch) == 1:
                    raise
                raise at_input(index, error) from error
        return items

    def item(self, value: ReadInput, index: int) -> Item:
        """An input that was read."""
        return Item(index=index, length=self.reader.length(value), value=value)

    def compute(self, items: Sequence[Item]) -> list[Row | OrtolanError]:
        """Compute the outputs of a batch, by one call of the graph if all have one size.

        Returns errors of single inputs in their places.
        """
        sources = [self._source(item) for item in items]
        valid = [source for source in sources if not isinstance(source, OrtolanError)]
        parts = [[source] for source in valid] if self.reader.is_alone else [valid] if valid else []
        outputs = iter([row for part in parts for row in self._encoded(part)])
        return [
            source if isinstance(source, OrtolanError) else _checked(next(outputs), source, item)
            for item, source in zip(items, sources, strict=True)
        ]

    def vectors(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute the vectors of an image, a tile or a part of a sound, `(vectors, width)`."""
        vectors: NDArray[np.float32] = self._encoded([values])[0]
        return vectors

    def _source(self, item: Item) -> ReadInput | OrtolanError:
        if item.value is not None:
            return item.value
        try:
            return self.reader.read(item.unread)
        except OrtolanError as error:
            return error

    def _encoded(self, sources: Sequence[ReadInput]) -> NDArray[np.float32]:
        """Compute the outputs of sources by one call of the graph."""
        feeds = self.reader.feeds(sources)
        output = self._engine.encode(feeds)[OUTPUT]
        self._check_shape(output.shape, len(sources))
        if MEL in feeds and LENGTHS in feeds:  # silence fills the last chunk
            output = output[:, : int(feeds[LENGTHS][0])]
        return output

    def _check_shape(self, shape: tuple[int, ...], rows: int) -> None:
        """Check the output: onnxruntime only warns if it differs from the declared shape."""
        axes = 3 if self.manifest.output_kind.by_token else 2
        if (len(shape), shape[0], shape[-1]) != (axes, rows, self.output.size):
            raise GraphError(
                f"The encoder returned an array {shape} for {rows} inputs. The manifest declares "
                f"{self.output.size} values of {self.output.kind}. Export the checkpoint again."
            )


def _checked(row_: NDArray[np.float32], source: ReadInput, item: Item) -> Row | OrtolanError:
    """One row of an output without its padding, or the error if it is not finite."""
    row = row_[: len(source)] if row_.ndim == 2 and isinstance(source, list) else row_
    if not np.isfinite(row).all():
        return NumericError(
            f"input {item.index}: the output is not finite. Run `ortolan verify` on the bundle."
        )
    return row
