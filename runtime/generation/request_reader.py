"""From prompts and sources to checked requests, before anything is computed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_integer
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.errors import ContextLengthError, InputError
from ortolan.runtime.generation.drafts import Draft, check_draft
from ortolan.runtime.generation.grammar import GrammarCompiler
from ortolan.runtime.generation.options import Options, checked_options
from ortolan.runtime.generation.request import Constraints, Request
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.inputs.ids import checked_ids
from ortolan.runtime.inputs.source import Source
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer, read_ids

__all__ = ["Prompt", "RequestReader"]

Prompt = str | Sequence[int] | NDArray[np.integer[Any]]
"""Text, or token ids."""


class RequestReader:
    """Checks requests to a decoder or an encoder-decoder. Threads may share it.

        (request,) = reader.prompts(["def main("], {"max_new_tokens": 8})
        sequence = reader.sequence(request)

    Args:
        manifest: of the bundle.
        tokenizer: reads and writes text; `None` for ids only.
        recommended: returns the sampling that the model recommends.
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

    def prompts(
        self, prompts: Sequence[Prompt], options: Options, *, draft: Draft | None = None
    ) -> list[Request]:
        """Check prompts and their options.

        Args:
            prompts: any number. An empty one stands for the BOS token.
            options: of every prompt; seeds count up.
            draft: of every prompt.

        Raises:
            ContextLengthError: a prompt and its new tokens exceed the context.
            InputError: a prompt, an option or the draft is invalid.
        """
        if draft is not None:
            check_draft(draft, self._manifest)
        checked = checked_options(options, self._manifest, self._tokenizer, self._recommended)
        rows = [self._ids(prompt) for prompt in prompts]
        requests = [
            checked.request(
                ids,
                limit=self._limit(len(ids), checked.max_new_tokens),
                prompt_tokens=len(ids),
                constraints=self._constraints,
                index=index,
            )
            for index, ids in enumerate(rows)
        ]
        return [replace(request, draft=draft) for request in requests]

    def sources(
        self,
        sources: Sequence[Source],
        options: Options,
        *,
        start: int,
        first: str | int | None = None,
    ) -> list[Request]:
        """Check sources of an encoder-decoder and their options.

        Args:
            sources: any number, read already.
            options: of every source; seeds count up.
            start: id that every sequence begins with.
            first: forced first new token, text or id; `None` for the checkpoint's.

        Raises:
            ContextLengthError: the new tokens exceed the context.
            InputError: an option or `first` is invalid.
        """
        checked = checked_options(options, self._manifest, self._tokenizer, self._recommended)
        limit = self._limit(1, checked.max_new_tokens)
        constraints = self._constraints
        if first is not None:
            constraints = replace(constraints, first=self._token(first))
        return [
            checked.request(
                [start],
                limit=limit,
                prompt_tokens=source_length(source),
                source=source,
                constraints=constraints,
                index=index,
            )
            for index, source in enumerate(sources)
        ]

    def sequence(self, request: Request, *, streams: bool = False) -> SampledSequence:
        """Make the sequence of a request, ready for a generator.

        Args:
            request: from `prompts` or `sources`.
            streams: whether text is taken piece by piece while it grows.

        Raises:
            SamplingError: a biased id is outside the vocabulary.
            GrammarError: the grammar is too complex, or no token can begin a text of it.
            MissingExtraError: a grammar needs llguidance, which is not installed.
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
                "The prompt is empty, and this model has no BOS token to start from. "
                "Pass at least one token."
            )
        return [self._manifest.tokens.bos]

    def _token(self, first: str | int) -> int:
        """The id of a forced first token."""
        if not isinstance(first, str):
            ids = [checked_integer("first", first)]
        elif self._tokenizer is None:
            raise no_tokenizer("first")
        else:
            ids = self._tokenizer.encode(first, add_special_tokens=False)
        if len(ids) != 1:
            raise InputError(
                f"first must be one token, but {first!r:.40} has {len(ids)}. "
                "Pass a token of the tokenizer, such as a language code, or its id."
            )
        (token,) = checked_ids(ids, vocab_size=self._manifest.vocab_size, what="first")
        return token

    def _limit(self, prompt_tokens: int, max_new_tokens: int | None) -> int:
        """Maximum number of new tokens after a prompt, or after a decoder's start token."""
        context = self._manifest.context_length
        room, wanted = context - prompt_tokens, max_new_tokens or 1
        if wanted > room:
            raise ContextLengthError(
                f"A prompt of {prompt_tokens} and {wanted} new tokens exceed the context of "
                f"{context} tokens. Shorten the prompt, or lower max_new_tokens"
                f"{f' to {room}' if room > 0 else ''}."
            )
        return room if max_new_tokens is None else max_new_tokens


def source_length(source: Source) -> int:
    """Tokens of a source; 1 for an image, since all images have the same size."""
    return len(source) if isinstance(source, list) else 1
