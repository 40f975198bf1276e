"""Speculation: brings one text forward by drafts, several tokens in a call where they are right."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ortolan.errors import OrtolanError
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.completion import FinishReason
from ortolan.runtime.generation.drafts import Draft, checked_drafter
from ortolan.runtime.generation.pace import Pace
from ortolan.runtime.inputs.ids import checked_ids

if TYPE_CHECKING:
    from ortolan.runtime.engine.runner import Runner
    from ortolan.runtime.generation.request import Request

__all__ = ["Speculation"]


class Text(Protocol):
    """What drafts need to know of a text."""

    request: "Request"
    finish_reason: FinishReason | None
    drafted_tokens: int
    accepted_tokens: int

    @property
    def next_tokens(self) -> Sequence[int]:
        """Its newest token."""

    @property
    def forced(self) -> Sequence[int]:
        """Tokens that come after that one, whatever the model says; often none."""


class Speculation:
    """The drafts of one text.

    Every call has at least two tokens, with a draft or without: so the kernels are those of a
    prompt, by which a row is the same to the bit whatever is computed beside it, and the text is
    the same whichever drafts were right.

    Args:
        draft: where guesses come from.
        text: with its first new token.
        runner: an exact one.
    """

    def __init__(self, draft: Draft, text: Text, runner: "Runner") -> None:
        self._text, self._runner = text, runner
        self._new = [text.next_tokens[0]]
        self._count = 1
        with _input_errors(draft):
            self._drafter = checked_drafter(draft.begin(text.request.prompt), draft)
        self._pace = Pace()

    def step(self, row: int, advance: Callable[[NDArray[np.float32]], None]) -> None:
        """Append the newest token and a draft to the row, and to the text what turns out right.

        Args:
            row: of the text, now.
            advance: gives the text the logits `(V,)` that follow its newest token.
        """
        text, runner = self._text, self._runner
        begun_at = time.perf_counter()
        with _input_errors(self._drafter):
            self._drafter.extend(self._new)
        room = min(text.request.limit - self._count, runner.wide_tokens) - 1
        draft = list(text.forced[: max(room, 0)])
        is_guessed = not draft and room > 0
        if is_guessed:
            draft = self._proposed(min(self._pace.choose(), room))
        drafted_at = time.perf_counter()
        length, tokens = runner.slots.lengths[row], [text.next_tokens[0], *draft]
        logits_SV = runner.wide_step(row, tokens)
        computed_at = time.perf_counter()
        self._new = []
        for logits_V, guess in zip(logits_SV, [*draft, None], strict=True):
            advance(logits_V)
            if text.finish_reason is not None:
                break
            self._new.append(text.next_tokens[0])
            if guess != self._new[-1]:
                break
        right = sum(guess == token for guess, token in zip(draft, self._new, strict=False))
        self._count += len(self._new)
        runner.slots.rewind(length + 1 + right, row=row)
        text.drafted_tokens += len(draft)
        text.accepted_tokens += right
        if is_guessed or not draft:  # what is forced says nothing of guesses
            self._pace.learn(
                drafted=len(draft),
                right=right,
                draft_s=drafted_at - begun_at,
                size=len(tokens),
                seconds=computed_at - drafted_at,
            )

    def _proposed(self, most: int) -> list[int]:
        """The guesses of a drafter, which anybody may have written."""
        what = f"draft: {type(self._drafter).__name__}.propose({most})"
        with _input_errors(self._drafter):
            guesses = self._drafter.propose(most)
        guesses = checked_ids(guesses, vocab_size=self._runner.logits_BV.shape[1], what=what)
        if len(guesses) > most:
            raise InputError(f"{what}: expected at most {most} token ids, got {len(guesses)}.")
        return guesses


@contextmanager
def _input_errors(source: object) -> Iterator[None]:
    """Make an error of a caller's own code a typed one."""
    try:
        yield
    except OrtolanError:
        raise
    except Exception as error:
        raise InputError(
            f"draft: {type(source).__name__} failed with {type(error).__name__}: {error}."
        ) from error
