"""Texts from sources: the encoder once, then the decoder a token at a time.

Knows ids, rows, when to stop, and time. Does not know what a source was made from.

A row that has ended goes on being fed its last token, and what it gives is not looked at, until so
many have ended that the rest is cheaper to put together anew.
"""

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.engine.session import Encoded, Engine
from ortolan.runtime.engine.sources import encode
from ortolan.runtime.generation.beam_search import BeamOptions, BeamSearch, Scored
from ortolan.runtime.generation.constraints import Constraints
from ortolan.runtime.generation.greedy import GreedyWriter
from ortolan.runtime.generation.request import never
from ortolan.runtime.generation.row import Row
from ortolan.runtime.generation.shelf import Shelf
from ortolan.runtime.generation.targets import Targets

__all__ = ["Found", "Translator"]

SHRINK = 0.75
"""Share of the rows that go on, at which the others are dropped; dropping copies what is left."""

Feeds = Mapping[str, NDArray[Any]]
"""Inputs of the encoder graph, for some sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found for one source.

    Attributes:
        texts: best first.
        is_complete: whether the search came to its end, or was cancelled.
        encode_s: seconds for the sources that were encoded together.
        first_s: seconds from the start to the first tokens.
        decode_s: seconds from then to the end of this source's search.
    """

    texts: tuple[Scored, ...]
    is_complete: bool
    encode_s: float
    first_s: float
    decode_s: float


class Translator:
    """Runs the two graphs of an encoder-decoder. Threads may share it.

    Args:
        engine: the sessions.
        start: what every text begins with.
        tokens: ids with a meaning.
    """

    def __init__(self, engine: Engine, *, start: int, tokens: Tokens) -> None:
        self._engine = engine
        self._start = start
        self._shelf: Shelf[Targets] = Shelf()
        self._writer: GreedyWriter | None = None
        if engine.repeats and tokens.forced_first is None:
            self._writer = GreedyWriter(engine, start=start, tokens=tokens)

    def write(
        self, rows: list[Row], feeds: Feeds, cancelled: Callable[[], bool]
    ) -> Generator[None, None, None]:
        """Bring rows, one for each source, forward by a token for each time it is asked.

        Raises:
            NumericError: the model gave logits that are not finite.
            ForkedError: the process was forked after the engine was made.
        """
        started_at = time.monotonic()
        try:
            if cancelled():
                return
            source = encode(self._engine, feeds)
            encode_s = time.monotonic() - started_at
            if cancelled is never and self._has_written(rows, source, started_at, encode_s):
                return
            tokens = [self._start] * len(rows)
            targets = self._targets(source)
            going = list(enumerate(rows))
            while going and not cancelled():
                logits_BV = targets.step(tokens)
                has_ended = False
                for index, row in going:
                    if row.tokens:
                        row.advance(logits_BV[index])
                    else:
                        row.begin(started_at, encode_s, logits_BV[index])
                    tokens[index] = row.tokens[-1]
                    has_ended = has_ended or row.finish_reason is not None
                if has_ended:
                    going = [(index, row) for index, row in going if row.finish_reason is None]
                    if 0 < len(going) <= SHRINK * len(tokens):
                        kept = [index for index, _ in going]
                        targets.keep(kept, kept)
                        tokens = [tokens[index] for index in kept]
                        going = [(at, row) for at, (_, row) in enumerate(going)]
                yield
            self._shelf.put(targets.size, targets)
        finally:
            # also when the generator is closed or dropped in the middle
            for row in rows:
                row.finish("cancelled")

    def _targets(self, source: Encoded, *, per_source: int = 1) -> Targets:
        """Empty texts behind sources."""
        shape = (len(source.lengths), per_source)
        targets = self._shelf.take(shape) or Targets(
            self._engine, sources=shape[0], per_source=per_source
        )
        targets.begin(source)
        return targets

    def _has_written(
        self, rows: list[Row], source: Encoded, started_at: float, encode_s: float
    ) -> bool:
        """Write the text of a single row in one call, where that can be done."""
        if self._writer is None or len(rows) > 1 or not rows[0].is_plain:
            return False
        begun_at = time.monotonic()
        tokens = self._writer.write(source, limit=rows[0].limit)
        if tokens is None:
            return False
        rows[0].extend(tokens, started_at, encode_s, begun_at)
        return True

    def search(
        self,
        options: BeamOptions,
        feeds: Feeds,
        *,
        count: int,
        constraints: Constraints,
        cancelled: Callable[[], bool],
    ) -> list[Found]:
        """Search the best texts of each source.

        Args:
            options: of each search.
            feeds: the sources.
            count: texts to give for each.
            constraints: tokens that are forced or ruled out.
            cancelled: asked between any two calls of the model.

        Raises:
            NumericError: the model gave logits that are not finite.
            ForkedError: the process was forked after the engine was made.
        """
        started_at = time.monotonic()
        sources, beams = len(next(iter(feeds.values()))), options.beams
        searches = [_Search(options, index * beams) for index in range(sources)]
        source = encode(self._engine, feeds)
        encoded_at = first_at = time.monotonic()
        tokens = [self._start] * (sources * beams)
        parents = list(range(sources * beams))
        targets = self._targets(source, per_source=beams)
        going = searches
        while going and not cancelled():
            logits_BV = targets.step(tokens)
            for search in going:
                search.advance(logits_BV[search.rows], constraints)
                tokens[search.rows] = search.beams.tokens
                parents[search.rows] = search.parents()
            if first_at == encoded_at:
                first_at = time.monotonic()
            going = [search for search in going if not search.beams.is_done]
            if going:
                targets.reorder(parents)
                if len(going) * beams <= SHRINK * len(tokens):
                    tokens, parents = _drop_others(going, targets, tokens)
        self._shelf.put(targets.size, targets)
        return [
            Found(
                texts=tuple(search.beams.best(count)),
                is_complete=search.beams.is_done,
                encode_s=encoded_at - started_at,
                first_s=first_at - started_at,
                decode_s=max(0.0, search.ended_at - first_at),
            )
            for search in searches
        ]


def _drop_others(
    going: list["_Search"], targets: Targets, tokens: list[int]
) -> tuple[list[int], list[int]]:
    """Keep the rows of some searches alone; gives their tokens, and each row as its own parent."""
    kept = [row for search in going for row in range(search.rows.start, search.rows.stop)]
    targets.keep(kept, [search.rows.start // search.width for search in going])
    for index, search in enumerate(going):
        search.rows = slice(index * search.width, (index + 1) * search.width)
    return [tokens[row] for row in kept], list(range(len(kept)))


class _Search:
    """The search for one source, and where its beams are among the rows of a batch."""

    def __init__(self, options: BeamOptions, first: int) -> None:
        self.beams = BeamSearch(options)
        self.width = options.beams
        self.rows = slice(first, first + self.width)
        self.ended_at = 0.0
        self._limit = options.max_tokens

    def advance(self, logits_GV: NDArray[np.float32], constraints: Constraints) -> None:
        """Extend the beams by a token, chosen or forced."""
        forced = constraints.forced(self.beams.length, self._limit)
        if forced is None:
            self.beams.advance(logits_GV, constraints.suppressed)
        else:
            self.beams.force(forced)
        self.ended_at = time.monotonic()

    def parents(self) -> list[int]:
        """Which row of the batch each beam goes on from: its own, once all is done."""
        if self.beams.is_done:
            return list(range(self.rows.start, self.rows.stop))
        return [self.rows.start + beam for beam in self.beams.parents]
