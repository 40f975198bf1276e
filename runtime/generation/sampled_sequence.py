"""A text that is generated token by token: its tokens, its visible part, and when it ends."""

import math
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ortolan.errors import OrtolanError
from ortolan.runtime.errors import GrammarError, InputError
from ortolan.runtime.generation.completion import (
    Completion,
    FinishReason,
    Timings,
    TokenLogprobs,
    rate,
)
from ortolan.runtime.generation.constraints import Constraints
from ortolan.runtime.generation.grammar import GrammarMatcher
from ortolan.runtime.generation.logprobs import Logprobs
from ortolan.runtime.generation.request import Request
from ortolan.runtime.generation.sampling import Sampler
from ortolan.runtime.generation.stop import StopMatcher
from ortolan.runtime.inputs.tokenizer import Tokenizer

__all__ = ["SampledSequence"]


class SampledSequence:
    """One request and what was generated for it so far.

    Args:
        request: what to generate.
        vocab_size: logits are `(V,)`.
        tokenizer: `None` leaves the text empty.
        matcher: of the request's grammar.
        streams: whether pieces of the text are taken while it grows.

    Attributes:
        tokens: the new ids.
        logprobs: how likely each was; empty where nobody asks.
        next_tokens: the one to append next to its only row.
        finish_reason: `None` as long as it goes on.
        pending: text that `take` has not handed out.
        prefill_s: seconds that its prompt took so far.
        prefilled_tokens: tokens of its prompt that have their states, once a part was computed.
        cached_tokens: of its prompt, those that were not computed.
        drafted_tokens: guesses at its tokens; `accepted_tokens` of them were right.
    """

    parents = (0,)
    """A single row, which goes on from itself."""

    def __init__(
        self,
        request: Request,
        *,
        vocab_size: int,
        tokenizer: Tokenizer | None,
        matcher: GrammarMatcher | None = None,
        streams: bool = False,
    ) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.next_tokens = (request.prompt[-1],)
        self.finish_reason: FinishReason | None = None
        self.pending = ""
        self.prefill_s = 0.0
        self.prefilled_tokens = self.cached_tokens = 0
        self.drafted_tokens = self.accepted_tokens = 0
        self._sampler = Sampler(request.sampling, vocab_size, prompt=request.prompt)
        self._matcher = matcher
        # mostly there are none, and each call counts beside a step of a small model
        self._is_free = (
            request.constraints == Constraints() and request.min_new_tokens == 0 and matcher is None
        )
        self._choose = self._sampler.next if self._is_free else self._constrained
        self._tokenizer = tokenizer
        # Text that nobody waits for and that stops nothing is decoded once, at the end.
        by_token = streams or len(request.stop) > 0
        self._stream = tokenizer.stream() if tokenizer is not None and by_token else None
        self._stops = StopMatcher(request.stop)
        self._text: list[str] = []
        self._error: OrtolanError | None = None
        self._started_at = self._first_at = self._last_at = time.monotonic()

    @property
    def forced(self) -> Sequence[int]:
        """Tokens that come next, whatever the model says; often none."""
        if self._matcher is None or not self.request.eos.isdisjoint(self._matcher.forced):
            return ()
        return self._matcher.forced

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """Tokens of the prompt that have their states, and tokens of the prompt."""
        return max(self.prefilled_tokens, self.cached_tokens), len(self.request.prompt)

    def advance(self, logits_V: NDArray[np.float32]) -> None:
        """Choose the next token, and see whether it is the last.

        Args:
            logits_V: `(V,)`; of tokens that may not be chosen they are overwritten.

        Raises:
            NumericError: the greatest of them is not finite.
            GrammarError: no token continues the text by its grammar.
        """
        count = self.request.logprobs
        if count is not None:
            kept_V = logits_V if self._is_free else logits_V.copy()
            logprobs = Logprobs(kept_V, count)
        token = self._choose(logits_V)
        self.tokens.append(token)
        if count is not None:
            self.logprobs.append(logprobs.of(token))
        self.next_tokens = (token,)
        self._last_at = time.monotonic()
        if len(self.tokens) == 1:
            self._first_at = self._last_at
        if token in self.request.eos:
            self.finish("stop")
            return
        if self._stream is not None:
            self._show(self._stream.push(token))
        if self._matcher is not None and self._matcher.is_complete:
            self.finish("stop")
        if self.finish_reason is None and len(self.tokens) >= self.request.limit:
            self.finish("length")

    def finish(self, reason: FinishReason) -> None:
        """End the text, unless it has ended, and show what was held back of it."""
        if self.finish_reason is not None:
            return
        if self._stream is not None:
            self._show(self._stream.flush())
            self._emit(self._stops.flush())
        self.finish_reason = self.finish_reason or reason

    def fail(self, error: OrtolanError) -> None:
        """End the text by an error, which `completion` raises."""
        self._error = error
        self.finish("cancelled")

    def take(self) -> str:
        """Hand out the text that came since the last time."""
        piece, self.pending = self.pending, ""
        return piece

    def completion(self) -> Completion:
        """What the text came to.

        Raises:
            InputError: it has not ended.
            NumericError: the model gave logits that are not finite.
        """
        if self._error is not None:
            raise self._error
        if self.finish_reason is None:
            raise InputError(
                "completion: expected a finished stream, got one that is not. "
                "Read it to the end, or close it."
            )
        prompt_tokens, decode_s = self.request.prompt_tokens, self._last_at - self._first_at
        return Completion(
            text=self._whole_text(),
            tokens=tuple(self.tokens),
            finish_reason=self.finish_reason,
            logprobs=None if self.request.logprobs is None else tuple(self.logprobs),
            timings=Timings(
                prompt_tokens=prompt_tokens,
                new_tokens=len(self.tokens),
                prefill_s=self.prefill_s,
                decode_s=decode_s,
                time_to_first_token_s=self._first_at - self._started_at,
                tokens_per_second=rate(len(self.tokens) - 1, decode_s),
                prefill_tokens_per_second=rate(prompt_tokens - self.cached_tokens, self.prefill_s),
                cached_tokens=self.cached_tokens,
                drafted_tokens=self.drafted_tokens,
                accepted_tokens=self.accepted_tokens,
            ),
        )

    def _constrained(self, logits_V: NDArray[np.float32]) -> int:
        constraints, matcher = self.request.constraints, self._matcher
        forced = constraints.forced(len(self.tokens), self.request.limit)
        if forced is not None:
            self._sampler.record(forced)
            return forced
        constraints.suppress(logits_V)
        ends, may_end = self.request.eos, len(self.tokens) >= self.request.min_new_tokens
        if matcher is None:
            if not may_end:
                for end in ends:
                    logits_V[end] = -math.inf
            return self._sampler.next(logits_V)
        if self.forced:
            token = self.forced[0]
            self._sampler.record(token)
        else:
            matcher.rule_out(logits_V, ends, may_end=may_end)
            if logits_V.max() == -math.inf:
                raise GrammarError(
                    f"grammar: expected a token that may follow {len(self.tokens)} others, got "
                    "none. Change the grammar, stop_tokens or min_new_tokens."
                )
            token = self._sampler.next(logits_V)
        if token not in ends:
            matcher.accept(token)
        return token

    def _whole_text(self) -> str:
        if self._stream is not None or self._tokenizer is None:
            return "".join(self._text)
        ended = bool(self.tokens) and self.tokens[-1] in self.request.eos
        return self._tokenizer.decode(self.tokens[:-1] if ended else self.tokens)

    def _show(self, text: str) -> None:
        """Let through what cannot become a part of a stop text any more."""
        text, is_stopped = self._stops.push(text)
        self._emit(text)
        if is_stopped:
            self.finish_reason = "stop"

    def _emit(self, text: str) -> None:
        if text:
            self._text.append(text)
            self.pending += text
