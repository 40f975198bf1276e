"""One generated text while it grows: its tokens, its visible part, and when it ends.

Knows logits of one row, ids, text and time. Does not know the model, nor other rows.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.constraints import Constraints
from ortolan.runtime.generation.sampling import Sampler
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.generation.stop import StopMatcher
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.runtime.limits import MAX_SEED

__all__ = ["Completion", "FinishReason", "Request", "Row", "Timings", "rate"]

FinishReason = Literal["length", "stop", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to generate, checked.

    Attributes:
        prompts: ids of each row, at least one each.
        limits: most new tokens of each row, such that it stays within the context.
        eos: ids that end a row.
        stop: texts that end a row.
        constraints: tokens that are forced or ruled out.
        cancelled: asked between any two calls of the model.
    """

    prompts: tuple[list[int], ...]
    limits: tuple[int, ...]
    sampling: Sampling
    eos: frozenset[int]
    stop: Sequence[str]
    cancelled: Callable[[], bool]
    constraints: Constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time went, on a clock that nobody sets.

    A text that one call wrote (a small translator's) has its time shared evenly by its tokens.

    Attributes:
        prefill_s: seconds for the row's own prompt.
        decode_s: seconds from the first new token to the last.
        time_to_first_token_s: seconds from the start of the request, other rows included.
        tokens_per_second: of the new tokens after the first; 0 when there is none.
        prefill_tokens_per_second: of the prompt; 0 when it was not computed.
    """

    prompt_tokens: int
    new_tokens: int
    prefill_s: float
    decode_s: float
    time_to_first_token_s: float
    tokens_per_second: float
    prefill_tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What was generated for one prompt.

    Attributes:
        text: up to the stop text, without it; empty when the bundle has no tokenizer.
        tokens: every new id, those of a stop text and the end-of-text id included.
        finish_reason: `stop` for an end-of-text id or a stop text; `length` for
            `max_new_tokens` or the context; `cancelled`.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    timings: Timings


class Row:
    """One prompt and what was generated for it so far.

    Attributes:
        tokens: the new ids.
        choose: the next token, from logits `(V,)`; the caller appends it to `tokens`.
        eos: ids that end the row.
        finish_reason: `None` as long as it goes on.
        limit: most new ids.
        pending: text that `take` has not handed out.
        prompt_tokens: what timings count: of the source, where there is one.
    """

    __slots__ = (
        "_constraints",
        "_first_at",
        "_last_at",
        "_matcher",
        "_prefill_s",
        "_sampler",
        "_started_at",
        "_stream",
        "_text",
        "_tokenizer",
        "choose",
        "eos",
        "finish_reason",
        "limit",
        "pending",
        "prompt",
        "prompt_tokens",
        "tokens",
    )

    def __init__(
        self,
        request: Request,
        index: int,
        *,
        vocab_size: int,
        tokenizer: Tokenizer | None,
        streams: bool,
    ) -> None:
        self.prompt = request.prompts[index]
        self.prompt_tokens = len(self.prompt)
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.pending = ""
        self.limit = request.limits[index]
        self.eos = request.eos
        self._constraints = request.constraints
        self._sampler = Sampler(_of_row(request.sampling, index), vocab_size, prompt=self.prompt)
        # mostly there are none, and each call counts beside a step of a small model
        is_free = request.constraints == Constraints()
        next_ = self._sampler.next_plain if self._sampler.is_plain else self._sampler.next
        self.choose = next_ if is_free else self._constrained
        self._tokenizer = tokenizer
        # Text that nobody waits for and that stops nothing is decoded once, at the end.
        by_token = streams or len(request.stop) > 0
        self._stream = tokenizer.stream() if tokenizer is not None and by_token else None
        self._matcher = StopMatcher(request.stop)
        self._text: list[str] = []
        self._started_at = self._first_at = self._last_at = time.monotonic()
        self._prefill_s = 0.0

    def begin(self, started_at: float, prefill_s: float, logits_V: NDArray[np.float32]) -> None:
        """Take the logits that follow the prompt; see `advance`."""
        self._started_at, self._prefill_s = started_at, prefill_s
        self.advance(logits_V)
        self._first_at = self._last_at

    def advance(self, logits_V: NDArray[np.float32]) -> None:
        """Choose the next token, and see whether it is the last.

        Args:
            logits_V: `(V,)`; of tokens that may not be chosen they are overwritten.

        Raises:
            NumericError: the greatest of them is not finite.
        """
        token = self.choose(logits_V)
        self.tokens.append(token)
        self._last_at = time.monotonic()
        if token in self.eos:
            self.finish("stop")
            return
        if self._stream is not None:
            self._show(self._stream.push(token))
        if self.finish_reason is None and len(self.tokens) >= self.limit:
            self.finish("length")

    @property
    def is_shown(self) -> bool:
        """Whether somebody looks at the text while it grows: each token has to `advance` it."""
        return self._stream is not None

    @property
    def is_plain(self) -> bool:
        """Whether each token is the one with the highest logit, and nobody looks on."""
        return self._sampler.is_plain and not self.is_shown

    def extend(
        self, tokens: Sequence[int], started_at: float, prefill_s: float, begun_at: float
    ) -> None:
        """Take all tokens at once, each chosen as `advance` chooses. The row is plain, and empty.

        Args:
            tokens: up to the one that ends the row, if it is reached.
            started_at: when the request began.
            prefill_s: as for `begin`.
            begun_at: when the first token began to be computed; each of them counts alike.
        """
        self.tokens = list(tokens)
        self._started_at, self._prefill_s = started_at, prefill_s
        self.settle()
        self._first_at = begun_at + (self._last_at - begun_at) / len(tokens)

    def settle(self) -> None:
        """See whether the last of the tokens, which have been appended, ends the row."""
        self._last_at = time.monotonic()
        if self.tokens[-1] in self.eos:
            self.finish("stop")
        elif len(self.tokens) >= self.limit:
            self.finish("length")

    def finish(self, reason: FinishReason) -> None:
        """End the row, unless it has ended; what was held back of its text comes out."""
        if self.finish_reason is not None:
            return
        if self._stream is not None:
            self._show(self._stream.flush())
            self._emit(self._matcher.flush())
        self.finish_reason = self.finish_reason or reason

    def take(self) -> str:
        """Hand out the text that came since the last time."""
        piece, self.pending = self.pending, ""
        return piece

    def completion(self) -> Completion:
        """What the row came to; it is finished."""
        if self.finish_reason is None:
            raise InputError(
                "completion: expected a finished stream, got one that is not. "
                "Read it to the end, or close it."
            )
        decode_s = self._last_at - self._first_at
        return Completion(
            text=self._whole_text(),
            tokens=tuple(self.tokens),
            finish_reason=self.finish_reason,
            timings=Timings(
                prompt_tokens=self.prompt_tokens,
                new_tokens=len(self.tokens),
                prefill_s=self._prefill_s,
                decode_s=decode_s,
                time_to_first_token_s=self._first_at - self._started_at,
                tokens_per_second=rate(len(self.tokens) - 1, decode_s),
                prefill_tokens_per_second=rate(self.prompt_tokens, self._prefill_s),
            ),
        )

    def _constrained(self, logits_V: NDArray[np.float32]) -> int:
        forced = self._constraints.forced(len(self.tokens), self.limit)
        if forced is not None:
            self._sampler.record(forced)
            return forced
        self._constraints.suppress(logits_V)
        return self._sampler.next(logits_V)

    def _whole_text(self) -> str:
        if self._stream is not None or self._tokenizer is None:
            return "".join(self._text)
        ended = bool(self.tokens) and self.tokens[-1] in self.eos
        return self._tokenizer.decode(self.tokens[:-1] if ended else self.tokens)

    def _show(self, text: str) -> None:
        """Let through what cannot become a part of a stop text any more."""
        text, is_stopped = self._matcher.push(text)
        self._emit(text)
        if is_stopped:
            self.finish_reason = "stop"

    def _emit(self, text: str) -> None:
        if text:
            self._text.append(text)
            self.pending += text


def _of_row(sampling: Sampling, index: int) -> Sampling:
    """The sampling of one row: seeds count up from that of the first."""
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + index) % (MAX_SEED + 1))


def rate(count: int, seconds: float) -> float:
    """How many in a second; 0 where there was none or no time."""
    return count / seconds if count > 0 and seconds > 0 else 0.0
