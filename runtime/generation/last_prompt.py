"""The states of the last prompt, for the next one of the same conversation.

A `LastPrompt` keeps the one row of a conversation between its turns. The next prompt mostly begins
as the last one did, so its row takes up where the two part:

    last prompt   [ system | question 1 ]
    answer                              [ steps ]
    next prompt   [ system | question 1 | answer 1 | question 2 ]
                  [ as it is            | computed as a prompt   ]

Steps are other kernels than those of prompts, so the states of an answer are never taken for those
of a prompt: the answer is computed once more, as a part of the next prompt (docs/adr/0021).
"""

import threading
import weakref
from collections.abc import Sequence

from ortolan.runtime.engine.attention_kernels import CHUNK, GRID
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.slots import Snapshot
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.sampled_sequence import SampledSequence

__all__ = ["LastPrompt"]

BOUNDARIES = 3
"""Places of a prompt at which replaced states are kept, the last ones.

The last alone would be of no use where a template writes the end of a prompt otherwise later on.
"""


class LastPrompt:
    """The states of the last prompt, in the slots that computed them. Nothing is copied.

    One text at a time goes on from it, in the first row of an exact `Generator`.

    Args:
        engine: computes the prompts.

    Attributes:
        slots: the states. A released slot keeps its memory.
        grid: tokens; a prompt goes on from a multiple of it. 1 where the parts of a prompt do not
            matter, else `GRID`, which is where exact parts end. Those of a mixture of experts
            matter too: tokens that share an expert are one product.
        chunk: most tokens of a part, for the generator.
    """

    def __init__(self, engine: Engine) -> None:
        self.grid = GRID if engine.depends_on_chunks or engine.mixes_rows else 1
        self.chunk = GRID if engine.mixes_rows else CHUNK
        # reserved: what is kept is never copied to grow
        self.slots = engine.slots(engine.rows_multiple, reserved=True)
        self.slots.keeps = True
        self._ids: list[int] = []  # of the first row, computed as a prompt
        self._replaced: dict[int, Snapshot] = {}  # at these lengths, in order
        self._text: weakref.ref[SampledSequence] | None = None
        self._lock = threading.Lock()

    @property
    def held_tokens(self) -> int:
        """Tokens of the last prompt, whose states are in memory."""
        return len(self._ids)

    @property
    def rows(self) -> int:
        """How often it holds replaced states, for the memory plan."""
        return 1 + BOUNDARIES if self.slots.replaces else 1

    @property
    def is_busy(self) -> bool:
        """Whether a text goes on from it that has not ended, and that somebody still holds."""
        text = None if self._text is None else self._text()
        return text is not None and text.finish_reason is None

    def begin(self, text: SampledSequence) -> None:
        """Let the first row hold what the prompt of a text begins with.

        Raises:
            InputError: an earlier text is not done: another thread is using it.
        """
        with self._lock:
            if self.is_busy:
                raise InputError(
                    "conversation: expected one thread at a time, got a second one. "
                    "Give each thread a conversation of its own."
                )
            self._text = weakref.ref(text)
        text.cached_tokens = self._rewind(text.request.prompt)

    def record(self, prompt: Sequence[int], start: int, end: int) -> None:
        """Remember that the row holds a prompt up to `end`, of which it held `start` before."""
        tokens = end - end % self.grid
        if tokens <= start:
            return
        self._ids = list(prompt[:tokens])
        if self.slots.replaces:
            self._replaced[tokens] = self.slots.view(start=tokens, end=tokens).copy()
            for length in list(self._replaced)[:-BOUNDARIES]:
                del self._replaced[length]

    def _rewind(self, prompt: Sequence[int]) -> int:
        """Cut the row to what it shares with a prompt, short of its last token."""
        length = 0
        for known, token in zip(self._ids, prompt[:-1], strict=False):
            if known != token:
                break
            length += 1
        length -= length % self.grid
        if self.slots.replaces:
            self._replaced = {at: states for at, states in self._replaced.items() if at <= length}
            length = max(self._replaced, default=0)
        self._ids = self._ids[:length]
        self.slots.lengths[:] = [length, *[0] * (len(self.slots.lengths) - 1)]
        if length in self._replaced:
            self.slots.extend(self._replaced[length], row=0)
        return length
