"""A sequence that is sampled token by token: its ids, its visible text, and when it ends."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.errors import GrammarError, InputError
from ortolan.runtime.generation.active_sequence import ActiveSequence
from ortolan.runtime.generation.completion import Completion, FinishReason, TokenLogprobs
from ortolan.runtime.generation.grammar import GrammarMatcher
from ortolan.runtime.generation.request import Constraints, Request
from ortolan.runtime.generation.sampling import Sampler, token_logprobs
from ortolan.runtime.generation.stop import StopMatcher
from ortolan.runtime.inputs.tokenizer import Tokenizer


class SampledSequence(ActiveSequence):
    """One request and the tokens sampled for it so far; `streams` if `take` is called meanwhile."""

    def __init__(
        self,
        request: Request,
        *,
        vocab_size: int,
        tokenizer: Tokenizer | None,
        matcher: GrammarMatcher | None = None,
        streams: bool = False,
    ) -> None:
        super().__init__(request)
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.next_tokens = (request.prompt[-1],)
        self.pending = ""
        self._sampler = Sampler(request.sampling, vocab_size, prompt=request.tokens)
        self._matcher = matcher
        # the common case skips `_constrained`: its calls are noticeable next to a tiny model
        self._is_free = (
            request.constraints == Constraints() and request.min_new_tokens == 0 and matcher is None
        )
        self._choose = self._sampler.next if self._is_free else self._constrained
        self._tokenizer = tokenizer
        # without a reader or stop texts, the text is decoded once, at the end
        by_token = streams or len(request.stop) > 0
        self._stream = tokenizer.stream() if tokenizer is not None and by_token else None
        self._stops = StopMatcher(request.stop)
        self._text: list[str] = []
        self._behind = 0  # tokens whose states are computed again

    @property
    def progress(self) -> tuple[int, int]:
        """Number of new tokens, and of the prompt's tokens with computed states."""
        return len(self.tokens), self.prefilled_tokens

    def restart(self) -> None:
        """Begin again at the prompt. The same tokens follow it, by the same calls of the model.

        So the states that are computed again have the same bits.
        """
        super().restart()
        self._behind = len(self.tokens)

    @property
    def forced(self) -> Sequence[int]:
        """Tokens that must follow: those of a restart, or of the grammar; usually none."""
        if self._behind:
            return self.tokens[-self._behind :]
        if self._matcher is None or not self.request.eos.isdisjoint(self._matcher.forced):
            return ()
        return self._matcher.forced

    @property
    def prompt_progress(self) -> tuple[int, int]:
        """Number of prompt tokens with computed states, and number of prompt tokens."""
        return max(self.prefilled_tokens, self.cached_tokens), len(self.request.prompt)

    def advance(self, logits_V: NDArray[np.float32]) -> None:
        """Choose the next token, and end the sequence if it is the last.

        Logits `(V,)` of forbidden tokens are overwritten.
        """
        if self._behind:
            self.next_tokens = (self.tokens[-self._behind],)
            self._behind -= 1
            return
        count = self.request.logprobs
        # `_constrained` overwrites logits, and log-probabilities are those of the model
        raw_V = logits_V.copy() if count is not None and not self._is_free else logits_V
        token = self._choose(logits_V)
        self.tokens.append(token)
        if count is not None:
            self.logprobs.append(token_logprobs(raw_V, token, count))
        self.next_tokens = (token,)
        self._tick(len(self.tokens))
        if token in self.request.eos:
            self.finish("stop")
            return
        if self._stream is not None:
            self._show(self._stream.push(token))
        if self._matcher is not None and self._matcher.is_complete:
            self.finish("stop")
        if self.finish_reason is None and len(self.tokens) >= self.request.limit:
            self.finish("length")

    def finish(self, reason: FinishReason | Literal["error"]) -> None:
        """End the sequence, unless it has ended, and release text that was held back."""
        if self.finish_reason is not None:
            return
        if self._stream is not None:
            self._show(self._stream.flush())
            self._emit(self._stops.flush())
        self.finish_reason = self.finish_reason or reason

    def take(self) -> str:
        """Return the text since the last call."""
        piece, self.pending = self.pending, ""
        return piece

    def completion(self) -> Completion:
        """The result."""
        if self.error is not None:
            raise self.error
        if self.finish_reason is None or self.finish_reason == "error":
            raise InputError(
                "completion: the stream has not ended. Read it to the end, or close it."
            )
        return Completion(
            text=self._whole_text(),
            tokens=tuple(self.tokens),
            finish_reason=self.finish_reason,
            logprobs=None if self.request.logprobs is None else tuple(self.logprobs),
            prompt_logprobs=(
                None if self.request.prompt_logprobs is None else tuple(self.prompt_logprobs)
            ),
            timings=self._timings(len(self.tokens)),
        )

    def _constrained(self, logits_V: NDArray[np.float32]) -> int:
        """Choose a token under constraints, a minimum length or a grammar."""
        constraints, matcher = self.request.constraints, self._matcher
        forced = constraints.forced(len(self.tokens), self.request.limit)
        if forced is not None:
            self._sampler.record(forced)
            return forced
        constraints.suppress(logits_V, self.tokens)
        eos, may_end = self.request.eos, len(self.tokens) >= self.request.min_new_tokens
        if matcher is None:
            if not may_end:
                for token in eos:
                    logits_V[token] = -math.inf
            return self._sampler.next(logits_V)
        if self.forced:
            token = self.forced[0]
            self._sampler.record(token)
        else:
            matcher.rule_out(logits_V, eos, may_end=may_end)
            if logits_V.max() == -math.inf:
                raise GrammarError(
                    f"No token can follow the first {len(self.tokens)} in this grammar. "
                    "Change the grammar, stop_tokens or min_new_tokens."
                )
            token = self._sampler.next(logits_V)
        if token not in eos:
            matcher.accept(token)
        return token

    def _whole_text(self) -> str:
        if self._stream is not None or self._tokenizer is None:
            return "".join(self._text)
        has_ended = bool(self.tokens) and self.tokens[-1] in self.request.eos
        return self._tokenizer.decode(self.tokens[:-1] if has_ended else self.tokens)

    def _show(self, text: str) -> None:
        """Emit text that can no longer become part of a stop text."""
        text, is_stopped = self._stops.push(text)
        self._emit(text)
        if is_stopped:
            self.finish_reason = "stop"

    def _emit(self, text: str) -> None:
        if text:
            self._text.append(text)
            self.pending += text
