"""Attention kernels: which one runs, and how many tokens it may score at once.

For several new tokens after a cache, onnxruntime's CPU provider has two GroupQueryAttention
kernels. One works in tiles and holds few scores. The other holds all scores of a call,

    scores (heads, new tokens, all tokens), float32

and is faster: half the time for a prompt of 128 or 512 tokens, three quarters after 7,680
(docs/adr/0011). This file selects it, and bounds the new tokens of a call so that the scores stay
small.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ortolan.runtime.graph.summary import GraphSummary

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import State

CHUNK = 64
"""Default tokens per chunk, after which a prompt can be cancelled or yield to other sequences.

Larger chunks are hardly faster; half the size takes a tenth longer (docs/adr/0011).
"""

GRID = 128
"""Most tokens per chunk. Exact chunks end at multiples of it, counted from the start of the row.

So prompts that share a prefix need the same states for it, whichever of them computed them.
"""

FEWEST = 16
"""Fewest new tokens of a chunk: below this, multiplying weights costs more than scores save."""

SCORE_BYTES = 128 << 20
"""Most bytes of scores of one call with more than `FEWEST` tokens."""

SWITCH = "ORT_GQA_DISABLE_FLASH_ATTENTION"
"""Environment variable that onnxruntime reads only when it creates a kernel."""

_HEADS = ("num_heads", "q_num_heads")

_WITHOUT_SCORES = "com.microsoft::LinearAttention"
"""Attention with a fixed-size memory instead of scores."""

_turns = threading.Condition()
_openers = {True: 0, False: 0}
"""Threads that are opening sessions with the switch set, and without it."""


def query_heads(graphs: Iterable[GraphSummary], states: "Iterable[State]") -> int:
    """Return the heads of the widest attention, from its nodes or its states.

    A state with one vector per token belongs to additive attention, which holds as many numbers
    for each pair of tokens as the vector has (docs/adr/0026).
    """
    of_nodes = (
        int(node.attributes[name])
        for graph in graphs
        for node in graph.attention
        if node.operator != _WITHOUT_SCORES
        for name in _HEADS
        if name in node.attributes
    )
    of_states = (
        state.shape[1]
        for state in states
        if state.update == "append" and len(state.shape) > 1 and isinstance(state.shape[1], int)
    )
    vectors = (
        state.shape[2]
        for state in states
        if state.update == "append" and len(state.shape) == 3 and isinstance(state.shape[2], int)
    )
    return max([1, *of_nodes, *of_states, *vectors])


def chunk_tokens(heads: int, length: int) -> int:
    """Return the most new tokens of a call on a row that holds `length` tokens."""
    return max(FEWEST, min(GRID, SCORE_BYTES // score_bytes(heads, 1, length + GRID)))


def score_bytes(heads: int, new_tokens: int, total: int) -> int:
    """Return the bytes of the scores of one layer."""
    return 4 * heads * new_tokens * total


@contextmanager
def kernel_choice(*, whole_scores: bool) -> Iterator[None]:
    """Select the kernel for sessions opened in this context, by a variable of the process.

    Threads that open sessions with the other kernel wait. A switch that the user has set stays as
    it is. The choice does not depend on the number of threads, since the two kernels differ in the
    last bits.
    """
    with _turns:
        _turns.wait_for(lambda: _openers[not whole_scores] == 0)
        is_ours = _openers[True] > 0 or SWITCH not in os.environ
        if whole_scores and is_ours:
            os.environ[SWITCH] = "1"
        counted = whole_scores and is_ours, not whole_scores
        _openers[True] += counted[0]
        _openers[False] += counted[1]
    try:
        yield
    finally:
        with _turns:
            _openers[True] -= counted[0]
            _openers[False] -= counted[1]
            if counted[0] and _openers[True] == 0:
                os.environ.pop(SWITCH, None)
            _turns.notify_all()
