"""From prompts and sources to checked requests, before anything is computed."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import (
    checked_count,
    checked_flag,
    checked_integer,
    refuse_unknown,
)
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.engine.pictures import FIRST, Picture, placed, runs
from ortolan.runtime.errors import ContextLengthError, InputError
from ortolan.runtime.generation.drafts import check_draft
from ortolan.runtime.generation.grammar import Grammar, GrammarCompiler
from ortolan.runtime.generation.options import (
    Options,
    adapter_number,
    cancel_function,
    chosen_sampling,
    logprobs_count,
)
from ortolan.runtime.generation.recommended import recommendation
from ortolan.runtime.generation.request import Constraints, Request
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.generation.stop import checked_stop
from ortolan.runtime.inputs.ids import checked_ids
from ortolan.runtime.inputs.input_reader import ReadInput, has_parts
from ortolan.runtime.inputs.media import MediaPrompt, Part, check_media, read_prompt
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer
from ortolan.runtime.limits import MAX_SEED, MAX_STOP_TOKENS

if TYPE_CHECKING:
    from ortolan.runtime.generation.media_reader import MediaReader

Prompt = str | Sequence[int] | NDArray[np.integer[Any]] | list[Any] | MediaPrompt
"""Text, token ids, or a list of parts (`Part`), for which type checkers infer no type."""


class RequestReader:
    """Checks requests to a decoder or an encoder-decoder. Threads may share it.

    (request,) = reader.prompts(["def main("], {"max_new_tokens": 8})
    sequence = reader.sequence(request)
    """

    def __init__(
        self,
        bundle: Bundle,
        tokenizer: Tokenizer | None,
        *,
        adapters: Sequence[str] = (),
        media: "MediaReader | None" = None,
    ) -> None:
        manifest = self._manifest = bundle.manifest
        self._bundle = bundle
        self._tokenizer = tokenizer
        self._adapters = adapters
        self._media = media
        self._constraints = Constraints.of(manifest.tokens)

    @cached_property
    def _grammars(self) -> GrammarCompiler | None:
        return None if self._tokenizer is None else GrammarCompiler(self._manifest, self._tokenizer)

    @cached_property
    def recommended_sampling(self) -> Sampling:
        """Sampling that the model recommends."""
        return recommendation(self._bundle).sampling

    def prompts(self, prompts: Sequence[Prompt], options: Options) -> list[Request]:
        """Check prompts and their options."""
        template = self._template(options)
        rows = [self._ids(prompt) for prompt in prompts]
        if template.prompt_logprobs is not None and any(pictures for _, pictures in rows):
            raise InputError(
                "prompt_logprobs: the vectors of an image have no log-probabilities. Leave it out."
            )
        return [
            self._request(template, ids, index, pictures=pictures)
            for index, (ids, pictures) in enumerate(rows)
        ]

    def sources(
        self,
        sources: Sequence[ReadInput],
        options: Options,
        *,
        start: int,
        first: str | int | None = None,
    ) -> list[Request]:
        """Check sources of an encoder-decoder and their options."""
        template = self._template(options)
        if template.prompt_logprobs is not None:
            raise InputError(
                "prompt_logprobs is for decoders: a source has no log-probabilities. Leave it out."
            )
        if template.draft is not None:
            raise InputError("draft is for decoders. Leave it out.")
        if first is not None:
            constraints = replace(template.constraints, opening=((self._token(first),),))
            template = replace(template, constraints=constraints)
        own = self._manifest.source
        return [
            self._request(
                template,
                [start],
                index,
                source=source,
                prompt_tokens=len(source) if own is None else own.count(source),
            )
            for index, source in enumerate(sources)
        ]

    def sequence(self, request: Request, *, streams: bool = False) -> SampledSequence:
        """Make the sequence of a request, ready for a generator."""
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

    def _ids(self, prompt: Prompt) -> tuple[list[int], tuple[Picture, ...]]:
        """Ids of a prompt, and the images or sounds that it holds."""
        manifest, tokenizer = self._manifest, self._tokenizer
        if isinstance(prompt, list | tuple) and has_parts(prompt):
            prompt = read_prompt(cast("Sequence[Part]", prompt), tokenizer, manifest)
        if isinstance(prompt, MediaPrompt):
            return self._placed(prompt)
        if not isinstance(prompt, str):
            ids = checked_ids(prompt, vocab_size=manifest.vocab_size, what="prompt")
        elif tokenizer is None:
            raise no_tokenizer("prompt")
        else:
            tokenizer.check_length(prompt, manifest.context_length)
            ids = tokenizer.encode(prompt)
        if ids:
            return ids, ()
        if manifest.tokens.bos is None:
            raise InputError(
                "The prompt is empty, and this model has no BOS token to start from. "
                "Pass at least one token."
            )
        return [manifest.tokens.bos], ()

    def _placed(self, prompt: MediaPrompt) -> tuple[list[int], tuple[Picture, ...]]:
        """Ids of a prompt with those of its vectors, and its images or sounds."""
        check_media(prompt.media, self._manifest)
        features = self._manifest.features
        if features is None or self._media is None:
            raise TypeError("expected a decoder with an encoder")
        count, kind = prompt.ids.count(features.token), self._manifest.media
        if count != len(prompt.media):
            raise InputError(
                f"The prompt has {len(prompt.media)} {kind} and {count} placeholders for {kind}. "
                "Give each one place, and do not write the placeholder in texts."
            )
        seen = [self._media.read(medium, self._tokenizer) for medium in prompt.media]
        ids = placed(prompt.ids, features.token, (one.ids for one in seen))
        if features.attention == "both_ways":
            _check_apart(ids, features.vectors)
        return ids, tuple(one.picture for one in seen)

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

    def _template(self, options: Options) -> Request:
        """Check options: a request without a prompt, whose limit is `max_new_tokens` or 0."""
        manifest, tokenizer = self._manifest, self._tokenizer
        refuse_unknown("options", options, Options.__optional_keys__)
        prompt_logprobs = logprobs_count(options, "prompt_logprobs")
        draft = options.get("draft")
        if draft is not None:
            check_draft(draft, manifest)
        stop, grammar = checked_stop(options.get("stop", ())), options.get("grammar")
        if tokenizer is None and len(stop) > 0:
            raise no_tokenizer("stop")
        stop_tokens = checked_ids(
            options.get("stop_tokens", ()), vocab_size=manifest.vocab_size, what="stop_tokens"
        )
        if len(stop_tokens) > MAX_STOP_TOKENS:
            raise InputError(
                f"stop_tokens must be at most {MAX_STOP_TOKENS} ids (got {len(stop_tokens)})."
            )
        if grammar is not None and not isinstance(grammar, Grammar):
            raise InputError(
                f"grammar must be an ortolan.Grammar (got {type(grammar).__name__}). "
                "Use Grammar.json_schema, Grammar.regex or Grammar.lark."
            )
        if tokenizer is None and grammar is not None:
            raise no_tokenizer("grammar")
        limit, fewest = options.get("max_new_tokens"), 1 if prompt_logprobs is None else 0
        ends = (
            ()
            if checked_flag("ignore_eos", options.get("ignore_eos", False))
            else manifest.tokens.eos
        )
        least = checked_count("min_new_tokens", options.get("min_new_tokens", 0), least=0)
        return Request(
            prompt=[],
            prompt_tokens=0,
            limit=0 if limit is None else checked_count("max_new_tokens", limit, least=fewest),
            is_bounded=limit is not None,
            min_new_tokens=least,
            sampling=chosen_sampling(options, lambda: self.recommended_sampling),
            eos=frozenset((*ends, *stop_tokens)),
            stop=stop,
            logprobs=logprobs_count(options, "logprobs"),
            prompt_logprobs=prompt_logprobs,
            adapter=adapter_number(options.get("adapter"), self._adapters),
            grammar=grammar,
            draft=draft,
            constraints=self._constraints,
            cancelled=cancel_function(options.get("cancel")),
        )

    def _request(
        self,
        template: Request,
        prompt: list[int],
        index: int,
        *,
        prompt_tokens: int | None = None,
        source: ReadInput | None = None,
        pictures: tuple[Picture, ...] = (),
    ) -> Request:
        """The request for the prompt or source at position `index` of a batch."""
        context = self._manifest.context_length
        is_empty = template.is_bounded and template.limit == 0
        if is_empty:
            context -= context % 2  # an exact chunk may need a dummy token
        room, wanted = context - len(prompt), 0 if is_empty else template.limit or 1
        if wanted > room:
            lower = f", or lower max_new_tokens{f' to {room}' if room > 0 else ''}"
            raise ContextLengthError(
                f"A prompt of {len(prompt)} and {wanted} new tokens exceed the context of "
                f"{context} tokens. Shorten the prompt{lower if wanted else ''}."
            )
        limit = template.limit if template.is_bounded else room
        if template.min_new_tokens > limit:
            raise InputError(
                f"min_new_tokens must be at most the limit of {limit} new tokens "
                f"(got {template.min_new_tokens}). Lower it, or raise max_new_tokens."
            )
        sampling = template.sampling
        if sampling.seed is not None and index > 0:  # seeds of a batch count up
            sampling = replace(sampling, seed=(sampling.seed + index) % (MAX_SEED + 1))
        features = self._manifest.features if pictures else None
        return replace(
            template,
            prompt=prompt,
            limit=limit,
            prompt_tokens=len(prompt) if prompt_tokens is None else prompt_tokens,
            sampling=sampling,
            source=source,
            pictures=pictures,
            placeholder=None if features is None else features.token,
        )


def _check_apart(ids: Sequence[int], vectors: int) -> None:
    """Raise InputError if vectors of several images are adjacent, and would see each other."""
    longest = max((run.stop - run.start for run in runs(ids) if ids[run.start] >= FIRST), default=0)
    if longest > vectors:
        raise InputError(
            "Two images are next to each other, but this model reads them apart. Put the texts "
            "that it was trained with between them, as a list of texts and images does."
        )
