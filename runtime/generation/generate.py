"""Generation: prompts in, completions out.

Knows ids, rows, when to stop, and time. Does not know where prompts come from, nor what a chat
is: that is for the caller.

One loop serves one prompt and several: each prompt has a row of one cache. Rows are prefilled one
after another, in place, and then decoded together, a token per row and step. A row that is
finished stays as it is, by being fed its last token again, until all are.
"""

import time
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Self

from ortolan.runtime.engine.runner import Decoder, prefill
from ortolan.runtime.engine.session import Engine
from ortolan.runtime.generation.request import never
from ortolan.runtime.generation.row import Completion, Request, Row, Timings
from ortolan.runtime.generation.shelf import Shelf
from ortolan.runtime.inputs.tokenizer import Tokenizer

__all__ = [
    "Completer",
    "Completion",
    "Request",
    "TextStream",
    "Timings",
    "rows_of",
]


class TextStream(Iterator[str]):
    """Pieces of text as they are generated. Stops early by `close`, or at the end of a `with`.

    A piece never holds half a character nor a part of a stop text.
    """

    def __init__(self, row: Row, steps: Generator[None, None, None]) -> None:
        """Stream a row, which `steps` brings forward by a token each."""
        self._row = row
        self._steps = steps

    @property
    def completion(self) -> Completion:
        """Everything that was generated, as soon as the stream has ended.

        Raises:
            InputError: it has not; read it to the end or close it.
        """
        return self._row.completion()

    def close(self) -> None:
        """Stop generating and give the memory back. Closing twice is no error."""
        self._steps.close()
        self._row.finish("cancelled")

    def __next__(self) -> str:
        while not self._row.pending:
            try:
                next(self._steps)
            except StopIteration:
                # the end lets out what was held back in case it became a stop text
                if not self._row.pending:
                    raise
        return self._row.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Completer:
    """Continues prompts by the graph of a decoder. Threads may share it."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer | None) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._shelf: Shelf[Decoder] = Shelf()

    def complete(self, request: Request) -> list[Completion]:
        """Generate to the end, for every row.

        Raises:
            NumericError: the model gave logits that are not finite.
            ForkedError: the process was forked after the model was loaded.
        """
        rows = self._rows(request, streams=False)
        for _ in self._steps(rows, request.cancelled):
            pass
        return [row.completion() for row in rows]

    def stream(self, request: Request) -> TextStream:
        """Generate piece by piece, for the one row of a request; nothing is computed yet."""
        (row,) = rows = self._rows(request, streams=True)
        return TextStream(row, self._steps(rows, request.cancelled))

    def _rows(self, request: Request, *, streams: bool) -> list[Row]:
        vocab_size = self._engine.manifest.vocab_size
        return rows_of(request, self._tokenizer, vocab_size=vocab_size, streams=streams)

    def _steps(self, rows: list[Row], cancelled: Callable[[], bool]) -> Generator[None, None, None]:
        """Prefill each row, then decode all; yields after every call that gave new tokens."""
        started_at = time.monotonic()
        engine, batch = self._engine, len(rows)
        try:
            decoder = self._shelf.take(batch) or Decoder(engine, engine.cache(batch=batch))
            decoder.begin(max(len(row.prompt) for row in rows))
            for index, row in enumerate(rows):
                begun_at = time.monotonic()
                logits_V = prefill(
                    engine, decoder.cache, row.prompt, row=index, cancelled=cancelled
                )
                if logits_V is None:
                    return
                row.begin(started_at, time.monotonic() - begun_at, logits_V)
                yield
            if batch == 1 and cancelled is never and not rows[0].is_shown:
                _write(decoder, rows[0])
            tokens = [row.prompt[-1] for row in rows]
            lengths = list(decoder.cache.lengths)
            going = [(index, row) for index, row in enumerate(rows) if row.finish_reason is None]
            while going and not cancelled():
                for index, row in going:
                    tokens[index] = row.tokens[-1]
                    lengths[index] += 1
                decoder.step(tokens, lengths)
                for index, row in going:
                    row.advance(decoder.logits[index])
                going = [(index, row) for index, row in going if row.finish_reason is None]
                yield
            # Only a request that came to its end leaves numbers that are known to be finite, and
            # a stream that is closed gives its memory back.
            self._shelf.put(batch, decoder)
        finally:
            # also when the generator is closed or dropped in the middle
            for row in rows:
                row.finish("cancelled")


def _write(decoder: Decoder, row: Row) -> None:
    """Bring the only row to its end; its first token is there."""
    if row.finish_reason is None:
        decoder.write(row.tokens, row.choose, most=row.limit, eos=row.eos)
        row.settle()


def rows_of(
    request: Request, tokenizer: Tokenizer | None, *, vocab_size: int, streams: bool
) -> list[Row]:
    """The texts of a request, still empty; `streams` where their pieces are waited for."""
    return [
        Row(request, index, vocab_size=vocab_size, tokenizer=tokenizer, streams=streams)
        for index in range(len(request.prompts))
    ]
