"""Where attention keeps its scores: by which kernel, and of how many tokens at once.

For several new tokens after a cache, onnxruntime's CPU has two kernels of GroupQueryAttention. One
works in tiles and never holds more than a few scores. The other holds all of a call, new tokens
by tokens attended to by heads, and is the faster one: it took half of the time for a prompt of 128
or 512 tokens, and three quarters after 7,680 (docs/adr/0011). It is chosen here, and prompts are
cut so that what it holds stays small.

Knows graphs and sizes. Does not know sessions.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ortolan.runtime.bundle.manifest import State
from ortolan.runtime.graph.summary import GraphSummary

__all__ = ["CHUNK", "GRID", "chunk_tokens", "query_heads", "score_bytes", "whole_scores"]

CHUNK = 64
"""Most tokens of a prompt in one call, after which it can be cancelled, or give way to others.

More are hardly faster, half of it takes a tenth longer (docs/adr/0011).
"""

GRID = 128
"""Tokens. Exact parts of prompts end at multiples of it, counted from the beginning of the row.

Where several prompts share these tokens, what was computed for one is what the others need. No
call has more tokens than that.
"""

FEWEST = 16
"""New tokens below which products of weights would cost more than the scores are worth."""

SCORE_BYTES = 128 << 20
"""Of the scores of one call, as long as it has more than `FEWEST` tokens."""

_SWITCH = "ORT_GQA_DISABLE_FLASH_ATTENTION"
"""Read by onnxruntime when it makes a kernel, and by nothing later."""

_HEADS = ("num_heads", "q_num_heads")

_WITHOUT_SCORES = "com.microsoft::LinearAttention"
"""Has a memory in place of them."""

_lock = threading.Lock()
_openers = 0
"""Threads that are opening sessions, as long as the switch is ours."""


def query_heads(graphs: Iterable[GraphSummary], states: Iterable[State]) -> int:
    """Heads of the widest attention: as nodes say, or as many as a state has.

    A state of one vector a token is that of additive attention, which has as many numbers for each
    pair of tokens as the vector has (docs/adr/0026).
    """
    said = (
        int(node.attributes[name])
        for graph in graphs
        for node in graph.attention
        if node.operator != _WITHOUT_SCORES
        for name in _HEADS
        if name in node.attributes
    )
    held = (
        state.shape[1]
        for state in states
        if state.update == "append" and len(state.shape) > 1 and isinstance(state.shape[1], int)
    )
    vectors = (
        state.shape[2]
        for state in states
        if state.update == "append" and len(state.shape) == 3 and isinstance(state.shape[2], int)
    )
    return max([1, *said, *held, *vectors])


def chunk_tokens(heads: int, length: int) -> int:
    """Most new tokens of a call of a row that holds `length` tokens already."""
    return max(FEWEST, min(GRID, SCORE_BYTES // score_bytes(heads, 1, length + GRID)))


def score_bytes(heads: int, new_tokens: int, total: int) -> int:
    """Memory of the scores of one layer, in float32."""
    return 4 * heads * new_tokens * total


@contextmanager
def whole_scores() -> Iterator[None]:
    """Let the sessions that are opened meanwhile hold all scores of a call.

    Whatever the number of threads, since the two kernels differ in the last bits. Where the user
    has set the switch, everything stays as it is.
    """
    global _openers
    with _lock:
        is_ours = _openers > 0 or _SWITCH not in os.environ
        if is_ours:
            os.environ[_SWITCH] = "1"
            _openers += 1
    try:
        yield
    finally:
        if is_ours:
            with _lock:
                _openers -= 1
                if _openers == 0:
                    os.environ.pop(_SWITCH, None)
