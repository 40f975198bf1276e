"""A text behind one source, written by a graph that repeats its steps.

Knows ids, states and when to stop. Does not know requests, nor how the graph was made
(`ortolan.runtime.generation.greedy_graph`).

Shape letters: V vocabulary.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.interface import SOURCE_LENGTHS
from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.engine.session import Encoded, Engine
from ortolan.runtime.generation.greedy_graph import ALLOWED, GOING_ON, LIMIT, START, SUMS, TOKENS

__all__ = ["GreedyWriter"]


class GreedyWriter:
    """Writes the text whose every token is the most probable one. Threads may share it.

    Args:
        engine: which `repeats`.
        start: what every text begins with.
        tokens: ids with a meaning; none is `forced_first`.
    """

    def __init__(self, engine: Engine, *, start: int, tokens: Tokens) -> None:
        self._engine = engine
        self._forced_last = tokens.forced_last
        self._eos = frozenset(tokens.eos)
        states = engine.manifest.states
        self._read = [state.input for state in states if state.update == "source"]
        allowed_V = np.zeros(engine.manifest.vocab_size, np.float32)
        allowed_V[list(tokens.suppressed)] = -np.inf
        going_on_V = np.ones(engine.manifest.vocab_size, np.bool_)
        going_on_V[list(tokens.eos)] = False
        self._feeds: dict[str, NDArray[Any]] = {
            ALLOWED: allowed_V,
            GOING_ON: going_on_V,
            START: np.array([[start]], np.int64),
        }

    def write(self, source: Encoded, *, limit: int) -> list[int] | None:
        """Write a text.

        Args:
            source: a single one.
            limit: most new tokens.

        Returns:
            The new tokens, to the one that ends the text, or to the limit. `None` where a step
            gave a logit that is not finite: the steps, taken one by one, will tell which.

        Raises:
            ForkedError: the process was forked after the engine was made.
        """
        feeds = dict(self._feeds)
        feeds.update(zip(self._read, source.states, strict=True))
        feeds[SOURCE_LENGTHS] = source.lengths
        chosen = limit if self._forced_last is None else limit - 1
        feeds[LIMIT] = np.array(chosen, np.int64)
        new, sums = self._engine.repeat((TOKENS, SUMS), feeds)
        if not math.isfinite(sum(sums.ravel().tolist())):
            return None
        tokens: list[int] = new.ravel().tolist()
        has_ended = bool(tokens) and tokens[-1] in self._eos
        if self._forced_last is not None and not has_ended:
            tokens.append(self._forced_last)
        return tokens
