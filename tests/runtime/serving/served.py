"""Requests to a service, and their completions alone."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from tests.runtime.tiny_decoder import VOCABULARY

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.drafts import PromptLookup
from ortolan.runtime.generation.grammar import Grammar
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.serving.service import Service
from ortolan.runtime.serving.ticket import Ticket

KINDS = ("fp32", "recurrent", "by-token", "int4", "int8-prefill")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a request is made from."""

    prompt: int
    limit: int
    seed: int
    temperature: float
    pattern: str | None = None
    adapter: str | None = None
    has_draft: bool = False
    scored: int | None = None

    @property
    def ids(self) -> list[int]:
        """Prompts of one seed share a prefix. Those with a draft repeat themselves."""
        random = np.random.default_rng(self.seed)
        chosen: list[int] = random.integers(0, VOCABULARY, 400).tolist()
        return (chosen[:20] * 20 if self.has_draft else chosen)[: self.prompt]

    def without_draft(self) -> "Spec":
        return replace(self, has_draft=False)

    def submit(self, service: Service, *, priority: int = 0) -> Ticket[Completion]:
        return service.submit(
            self.ids,
            priority=priority,
            draft=PromptLookup() if self.has_draft else None,
            adapter=self.adapter,
            max_new_tokens=self.limit,
            logprobs=1,
            prompt_logprobs=self.scored,
            sampling=Sampling(temperature=self.temperature, seed=self.seed),
            grammar=None if self.pattern is None else Grammar.regex(self.pattern),
        )


def alone_in(model: Decoder) -> Callable[[Spec], Completion]:
    """The completion of a request alone in a service."""

    @cache
    def run(spec: Spec) -> Completion:
        with model.serve(slots=2, cache_bytes=0) as service:
            completion: Completion = spec.submit(service).result()
            return completion

    return run


def outcome(done: Completion) -> tuple[Any, ...]:
    """Tokens and log-probabilities."""
    return done.tokens, done.logprobs


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def settle(service: Any) -> None:
    """Wait until the service is idle."""
    wait_until(lambda: service.stats().running + service.stats().waiting == 0)
