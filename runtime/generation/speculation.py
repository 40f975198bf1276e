"""Speculation: advances one sequence by drafts, several tokens per call where they are right."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ortolan.errors import OrtolanError
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.drafts import (
    Draft,
    Drafter,
    HeadDrafter,
    MtpHead,
    Pace,
    begin_draft,
)
from ortolan.runtime.inputs.ids import checked_ids

if TYPE_CHECKING:
    from ortolan.runtime.engine.runner import Runner
    from ortolan.runtime.generation.active_sequence import ActiveSequence


class Speculation:
    """The drafts of one sequence.

        prompt, then        a        newest token
        draft                 b c d  guesses
        one call computes   a b c d  and the sampler chooses b c x y
        accepted              b c    x is the newest token now, d is rewound

    Every call has at least two tokens, with or without a draft. So it uses the kernels of a
    prefill, whose rows do not depend on each other, and the sequence is the same whichever guesses
    were right.
    """

    def __init__(self, draft: Draft, sequence: "ActiveSequence", runner: "Runner") -> None:
        self._sequence, self._runner = sequence, runner
        self._new: list[int] = []
        self._count = 0
        request = sequence.request
        self._drafter: Drafter
        with _typed_errors(draft):
            if isinstance(draft, MtpHead):  # it reads vectors of images, too
                self._drafter = draft.begin(request.prompt)
            else:
                self._drafter = begin_draft(draft, request.tokens)
        self._pace = Pace()

    def observe(self, start: int, states_SE: NDArray[np.float32]) -> None:
        """Pass the states of tokens from `start` on to the drafter, if it reads them."""
        if isinstance(self._drafter, HeadDrafter):
            self._drafter.observe(start, states_SE, self._runner)

    def step(self, row: int, advance: Callable[[NDArray[np.float32]], None]) -> None:
        """Compute the newest token and a draft; append the tokens that turn out right."""
        sequence, runner = self._sequence, self._runner
        begun_at = time.perf_counter()
        if self._count == 0:
            self._new, self._count = [sequence.next_tokens[0]], 1
        with _typed_errors(self._drafter):
            self._drafter.extend(self._new)
        room = min(sequence.request.limit - self._count, runner.wide_tokens) - 1
        draft = list(sequence.forced[: max(room, 0)])
        is_guessed = not draft and room > 0
        if is_guessed:
            draft = self._proposed(min(self._pace.choose(), room))
        drafted_at = time.perf_counter()
        length, tokens = runner.slots.lengths[row], [sequence.next_tokens[0], *draft]
        logits_SV = runner.wide_step(row, tokens)
        computed_at = time.perf_counter()
        self._new = []
        for logits_V, guess in zip(logits_SV, [*draft, None], strict=True):
            advance(logits_V)
            if sequence.finish_reason is not None:
                break
            self._new.append(sequence.next_tokens[0])
            if guess != self._new[-1]:
                break
        right = sum(guess == token for guess, token in zip(draft, self._new, strict=False))
        self._count += len(self._new)
        runner.slots.rewind(length + 1 + right, row=row)
        self.observe(length, runner.hidden_SE[: 1 + right])
        sequence.drafted_tokens += len(draft)
        sequence.accepted_tokens += right
        if is_guessed or not draft:  # forced tokens say nothing about guesses
            self._pace.learn(
                drafted=len(draft),
                right=right,
                draft_s=drafted_at - begun_at,
                size=len(tokens),
                seconds=computed_at - drafted_at,
            )

    def _proposed(self, most: int) -> list[int]:
        """Guesses of the drafter, checked: it may be the caller's own code."""
        what = f"draft: {type(self._drafter).__name__}.propose({most})"
        with _typed_errors(self._drafter):
            guesses = self._drafter.propose(most)
        guesses = checked_ids(guesses, vocab_size=self._runner.logits_BV.shape[1], what=what)
        if len(guesses) > most:
            raise InputError(f"{what}: expected at most {most} token ids, got {len(guesses)}.")
        return guesses


@contextmanager
def _typed_errors(source: object) -> Iterator[None]:
    """Turn any exception of the caller's own code into an InputError."""
    try:
        yield
    except OrtolanError:
        raise
    except Exception as error:
        raise InputError(
            f"draft: {type(source).__name__} failed with {type(error).__name__}: {error}."
        ) from error
