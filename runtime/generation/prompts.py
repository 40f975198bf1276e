"""From prompts to texts that are ready to be generated, checked in full."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.errors import ContextLengthError, InputError
from ortolan.runtime.generation.constraints import Constraints
from ortolan.runtime.generation.drafts import Draft, check_draft
from ortolan.runtime.generation.grammar import GrammarCompiler
from ortolan.runtime.generation.options import Options, checked_options
from ortolan.runtime.generation.request import Request
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.inputs.tokenizer import Tokenizer, read_ids

__all__ = ["Prompt", "PromptReader"]

Prompt = str | Sequence[int] | NDArray[np.integer[Any]]
"""Text, or token ids."""


class PromptReader:
    """Checks the requests of a decoder. Nothing is computed; threads may share it.

        (request,) = reader.requests(["def main("], {"max_new_tokens": 8})
        text = reader.text(request)

    Args:
        manifest: of the bundle.
        tokenizer: of the bundle, where it has one.
        recommended: gives the sampling that the model recommends.
    """

    def __init__(
        self,
        manifest: Manifest,
        tokenizer: Tokenizer | None,
        recommended: Callable[[], Sampling] = Sampling,
    ) -> None:
        self._manifest = manifest
        self._recommended = recommended
        self._tokenizer = tokenizer
        self._constraints = Constraints.of(manifest.tokens)
        self._grammars = None if tokenizer is None else GrammarCompiler(manifest, tokenizer)

    def requests(
        self, prompts: Sequence[Prompt], options: Options, *, draft: Draft | None = None
    ) -> list[Request]:
        """Check prompts and their options; seeds count up from that of the first prompt.

        Memory is left to the caller, who knows what else is to be computed.

        Args:
            prompts: any number. Empty text stands for the beginning-of-text token, where the
                model has one.
            options: of each of them.
            draft: of each of them.

        Raises:
            ContextLengthError: a prompt and its new tokens are more than the context.
            InputError: anything else is wrong.
        """
        if draft is not None:
            check_draft(draft, self._manifest)
        checked = checked_options(options, self._manifest, self._tokenizer, self._recommended)
        ids = [self._ids(prompt) for prompt in prompts]
        requests = [
            checked.request(
                row,
                limit=self._limit(len(row), checked.max_new_tokens),
                prompt_tokens=len(row),
                constraints=self._constraints,
                index=index,
            )
            for index, row in enumerate(ids)
        ]
        return [replace(request, draft=draft) for request in requests]

    def text(self, request: Request, *, streams: bool = False) -> SampledSequence:
        """A text to be generated for a request.

        Args:
            request: one of `requests`.
            streams: whether pieces of the text are taken while it grows.

        Raises:
            SamplingError: a biased id is outside the vocabulary.
            GrammarError: the grammar is too complex, or no token can begin a text of it.
            MissingExtraError: there is a grammar, and llguidance is not installed.
        """
        matcher = None
        if request.grammar is not None and self._grammars is not None:
            matcher = self._grammars.matcher(request.grammar)
        return SampledSequence(
            request,
            vocab_size=self._manifest.vocab_size,
            tokenizer=self._tokenizer,
            matcher=matcher,
            streams=streams,
        )

    def _ids(self, prompt: Prompt) -> list[int]:
        vocab_size = self._manifest.vocab_size
        ids = read_ids(prompt, self._tokenizer, vocab_size=vocab_size, what="prompt")
        if ids:
            return ids
        if self._manifest.tokens.bos is None:
            raise InputError(
                "prompt: expected at least one token, got none, and this model has no "
                "beginning-of-text token. Give it something to continue."
            )
        return [self._manifest.tokens.bos]

    def _limit(self, prompt_tokens: int, max_new_tokens: int | None) -> int:
        context = self._manifest.context_length
        room, wanted = context - prompt_tokens, max_new_tokens or 1
        if wanted > room:
            raise ContextLengthError(
                f"context: expected at most {context} tokens, got a prompt of {prompt_tokens} "
                f"and {wanted} new. Shorten the prompt, or lower max_new_tokens"
                f"{f' to {room}' if room > 0 else ''}."
            )
        return room if max_new_tokens is None else max_new_tokens
