"""States of a conversation's last prompt, from which its next prompt continues.

A conversation keeps one row of states between its turns. The next prompt usually starts like the
last one, so the row is cut where they diverge:

    last prompt   [ system | question 1 ]
    answer                              [ decode steps ]
    next prompt   [ system | question 1 | answer 1 | question 2 ]
                  [ kept                | prefilled             ]

Decode steps use other kernels than prefills, so the states of an answer cannot replace those of a
prompt: the answer is computed again as part of the next prompt (docs/adr/0021).
"""

import threading
import weakref
from collections.abc import Sequence

from ortolan.runtime.engine.attention_kernels import CHUNK, GRID
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.host_states import Snapshot
from ortolan.runtime.engine.slots import Mark
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.sampled_sequence import SampledSequence

BOUNDARIES = 3
"""Number of places at the end of a prompt at which recurrent states are kept.

One is not enough where a template later writes the end of a prompt differently.
"""


class LastPrompt:
    """The states of the last prompt, in the slots that computed them. Nothing is copied.

    One sequence at a time continues from it, in the first row of an exact `Generator`.

    Attributes:
        slots: the states. A released slot keeps its memory.
        chunk: maximum number of tokens per chunk, for the generator.
    """

    def __init__(self, engine: Engine) -> None:
        self._multiple = engine.exactness.tokens_multiple
        self.chunk = GRID if engine.exactness.mixes_rows else CHUNK
        # reserved: growing would copy the states
        self.slots = engine.slots(engine.exactness.rows_multiple, reserved=True)
        self.slots.keeps = True
        self._adapter = 0
        self._ids: list[int] = []  # of the first row, computed by prefill
        self._replaced: dict[int, Snapshot] = {}  # recurrent states, by length in ascending order
        self._prompt_end: Mark | None = None  # states with a window
        self._sequence: weakref.ref[SampledSequence] | None = None
        self._lock = threading.Lock()

    @property
    def held_tokens(self) -> int:
        """Tokens whose states are in memory."""
        return len(self._ids)

    @property
    def rows(self) -> int:
        """Number of recurrent states in memory, for the memory plan."""
        return 1 + BOUNDARIES if self.slots.replaces else 1

    @property
    def is_busy(self) -> bool:
        """Whether an unfinished sequence that is still referenced continues from it."""
        sequence = None if self._sequence is None else self._sequence()
        return sequence is not None and sequence.finish_reason is None

    def begin(self, sequence: SampledSequence) -> None:
        """Cut the first row to what it shares with the prompt of a sequence."""
        with self._lock:
            if self.is_busy:
                raise InputError(
                    "Another thread is using this conversation. Give each thread its own."
                )
            self._sequence = weakref.ref(sequence)
        request = sequence.request
        if request.adapter != self._adapter:
            self._adapter, self._ids, self._replaced = request.adapter, [], {}
            self._prompt_end = None
        self.slots.adapters[0] = self._adapter
        # log-probabilities of the prompt need the logits of all its tokens
        prompt = request.prompt if request.prompt_logprobs is None else []
        sequence.cached_tokens = self._rewind(prompt)

    def record(self, prompt: Sequence[int], start: int, end: int) -> None:
        """Note that prefill has extended the first row from `start` to `end` tokens."""
        tokens = end - end % self._multiple
        if tokens <= start:
            return
        self._ids = list(prompt[:tokens])
        if self.slots.windows.window is not None:
            self._prompt_end = self.slots.mark() if end == len(prompt) else None
        if self.slots.replaces:
            self._replaced[tokens] = self.slots.view(start=tokens, end=tokens).copy()
            for length in list(self._replaced)[:-BOUNDARIES]:
                del self._replaced[length]

    def _rewind(self, prompt: Sequence[int]) -> int:
        """Cut the row to the prefix it shares with a prompt, without the prompt's last token."""
        length = 0
        for old, token in zip(self._ids, prompt[:-1], strict=False):
            if old != token:
                break
            length += 1
        length -= length % self._multiple
        if self.slots.replaces:
            self._replaced = {at: states for at, states in self._replaced.items() if at <= length}
            length = max(self._replaced, default=0)
        length = self._within_windows(length)
        self._ids = self._ids[:length]
        for row, held in enumerate([length, *[0] * (len(self.slots.lengths) - 1)]):
            self.slots.lengths[row] = held
            if held == 0:
                self.slots.windows.put(row, 0, 0)
        if length in self._replaced:
            self.slots.extend(self._replaced[length], row=0)
        return length

    def _within_windows(self, length: int) -> int:
        """The length that the row can be rewound to: this one, or 0 if it begins too late.

        A long answer moves a prompt out of the windows; their copy takes the row back to its end.
        """
        slots, prompt_end = self.slots, self._prompt_end
        if length < slots.windows.least(0) and prompt_end is not None:
            slots.go_back(prompt_end)
        if length < slots.windows.least(0):
            length = 0
        if length == 0:
            self._prompt_end = None
        return length
