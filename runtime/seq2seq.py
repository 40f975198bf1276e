"""An encoder-decoder: texts, ids or images in; texts out."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_count, checked_integer
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import wrong_kind
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.slots import Encoded
from ortolan.runtime.errors import ContextLengthError, InputError, ManifestError
from ortolan.runtime.generation.beam_options import (
    MAX_BEAMS,
    checked_early_stopping,
    checked_length_penalty,
    refuse_beam_options,
    refuse_sampling_options,
)
from ortolan.runtime.generation.beam_search import BeamOptions, EarlyStopping
from ortolan.runtime.generation.beam_sequence import BeamSequence
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.constraints import Constraints
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.options import (
    CheckedOptions,
    Options,
    checked_options,
)
from ortolan.runtime.generation.prompts import PromptReader
from ortolan.runtime.generation.recommended import recommended_sampling
from ortolan.runtime.generation.request import Request
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.generation.text_stream import TextStream
from ortolan.runtime.inputs.ids import TokenIds, checked_ids
from ortolan.runtime.inputs.source import Input, Source, SourceReader, is_batch
from ortolan.runtime.inputs.tokenizer import no_tokenizer
from ortolan.runtime.model import Model

__all__ = ["MAX_SOURCES", "Seq2Seq"]

MAX_SOURCES = 4096
"""Sources of one call."""

MAX_ROWS = 64
"""Rows, of all beams of all sources, that are computed together; more fill no core better."""

One = Input
"""A text or its token ids; or a path, the bytes or the pixels of an image."""

Several = list[str] | list[Sequence[int]] | list[list[int]] | list[NDArray[Any]] | list[Path]
"""Several of them, of any lengths."""


class Seq2Seq(Model):
    """A bundle that writes texts from sources, such as their translations.

    A source is a text, or its token ids; where the encoder takes images, the path of a file, its
    contents, or uint8 pixels. Ids are taken as they are; a text gets the special tokens of its
    tokenizer.
    """

    kind = "encoder-decoder"

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        super().__init__(bundle, engine)
        manifest = bundle.manifest
        if manifest.tokens.start is None:
            raise ManifestError(
                "manifest.json: expected the token that a text begins with, got none. "
                "Export the checkpoint again, with a decoder_start_token_id."
            )
        self._start = manifest.tokens.start
        self._constraints = Constraints.of(manifest.tokens)
        self._memory = RequestMemory(manifest)
        self._recommended = cache(partial(recommended_sampling, bundle))
        self._prompts = PromptReader(manifest, self.tokenizer, self._recommended)
        self._reader = SourceReader(manifest, self.tokenizer)

    @overload
    def generate(
        self,
        source: One,
        *,
        beams: int = 1,
        n_best: int = 1,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        first: str | int | None = None,
        **options: Unpack[Options],
    ) -> Completion: ...

    @overload
    def generate(
        self,
        source: Several,
        *,
        beams: int = 1,
        n_best: int = 1,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        first: str | int | None = None,
        **options: Unpack[Options],
    ) -> list[Completion]: ...

    def generate(
        self,
        source: One | Several,
        *,
        beams: int = 1,
        n_best: int = 1,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        first: str | int | None = None,
        **options: Unpack[Options],
    ) -> Completion | list[Completion]:
        """Write the text of a source, or of several.

        Several sources are computed together, those of similar length at first, and each gives what
        it gives alone, up to rounding: where two tokens are nearly equally likely, the texts may
        differ. Source `b` of a list with seed `s` is drawn with seed `s + b`.

        Args:
            source: one, or a list of them, of any lengths.
            beams: texts to search at once; 1 takes one token after the other (`sampling`).
            n_best: texts to give for each source, at most `beams`.
            length_penalty: above 0 favours long texts, below 0 short ones; only for beams.
            early_stopping: when a search is over; see `ortolan.runtime.generation.beam_search`.
            first: the first new token, or its id, such as the language to translate to; `None` for
                what the checkpoint says, if anything.
            **options: of each text, as `ortolan.runtime.generation.options.Options` lists them;
                for beams only `max_new_tokens` and `cancel`.

        Returns:
            A completion; a list of them for a list of sources.

        Raises:
            ContextLengthError: a source, or the new tokens, are more than the model takes.
            MemoryPlanError: they need more memory than is left.
            InputError: anything else is wrong with the request.
            NumericError: the model gave logits that are not finite.
            ForkedError: the process was forked after the model was loaded.
        """
        beams = checked_count("beams", beams, most=MAX_BEAMS)
        checked = checked_options(options, self.manifest, self.tokenizer, self._recommended)
        sources, limit = self._fitting(source, beams, checked.max_new_tokens)
        rules = self._rules(first)
        texts: list[SampledSequence] | list[BeamSequence]
        if beams == 1:
            refuse_beam_options(n_best, length_penalty, early_stopping)
            texts = self._sampled(sources, limit, checked, rules)
        else:
            refuse_sampling_options(options)
            count = checked_count("n_best", n_best, most=beams)
            search = self._beam_options(beams, limit, length_penalty, early_stopping)
            texts = self._searched(sources, search, count, checked, rules)
        done = self._run(texts, sources, beams)
        return done if is_batch(source) else done[0]

    def stream(
        self, source: One, *, first: str | int | None = None, **options: Unpack[Options]
    ) -> TextStream:
        """Write the text of a source, and give it piece by piece.

        The request is checked at once; nothing is computed before the first piece is read.
        Closing or dropping the stream cancels it. There is no stream of a beam search, which
        knows its text at the end.

        Args:
            source: as for `generate`, but a single one.
            first: as for `generate`.
            **options: as for `generate`.

        Returns:
            An iterator of pieces, which joined are the text; its `completion` is there at
            the end.

        Raises:
            TokenizerError: the bundle has no tokenizer.
            ContextLengthError: as for `generate`.
            InputError: as for `generate`.
        """
        if self.tokenizer is None:
            raise no_tokenizer("stream")
        if is_batch(source):
            raise InputError("stream: expected one source, got a list of them. Use `generate`.")
        checked = checked_options(options, self.manifest, self.tokenizer, self._recommended)
        sources, limit = self._fitting(source, 1, checked.max_new_tokens)
        (text,) = self._sampled(sources, limit, checked, self._rules(first), streams=True)
        return TextStream(text, self._generator(1))

    def logits(self, source: One, ids: TokenIds) -> NDArray[np.float32]:
        """Compute the logits after every token of a text, teacher-forced.

        Args:
            source: a single one.
            ids: what the decoder takes: its start token, then those of the text.

        Returns:
            float32 `(len(ids), vocab)`.

        Raises:
            ContextLengthError: a source or a text longer than the model takes.
            InputError: several sources, no ids, or one outside the vocabulary.
            NumericError: the logits are not finite.
            ForkedError: the process was forked after the model was loaded.
        """
        if is_batch(source):
            raise InputError("logits: expected one source, got a list of them.")
        vocab_size = self.manifest.vocab_size
        tokens = checked_ids(ids, vocab_size=vocab_size, what="ids", fewest=1)
        slots = self._engine.slots()
        slots.put_sources([0], self._encoded(self._sources(source)))
        return Runner(self._engine, slots).teacher_forced(tokens)

    @property
    def recommended_sampling(self) -> Sampling:
        """What the model's `generation_config.json` recommends; greedy without one.

        Raises:
            SamplingError: the file is broken.
        """
        return self._recommended()

    def _sources(self, given: Any) -> list[Source]:
        """Read all sources before anything is computed."""
        several: list[Any] = list(given) if is_batch(given) else [given]
        if len(several) > MAX_SOURCES:
            raise InputError(f"sources: expected at most {MAX_SOURCES}, got {len(several)}.")
        return [self._reader.read(each) for each in several]

    def _limit(self, max_new_tokens: int | None) -> int:
        room = self.manifest.context_length - 1  # the start token
        if max_new_tokens is None:
            return max(1, room)
        if max_new_tokens > room:
            raise ContextLengthError(
                f"context: expected at most {room} new tokens after the start token, got "
                f"{max_new_tokens}. Lower max_new_tokens."
            )
        return max_new_tokens

    def _fitting(
        self, given: Any, beams: int, max_new_tokens: int | None
    ) -> tuple[list[Source], int]:
        """Read all sources and the limit; refuse what cannot fit into memory."""
        sources, limit = self._sources(given), self._limit(max_new_tokens)
        together = _by_length(sources)[: max(1, MAX_ROWS // beams)]
        rows = len(together) * beams
        self._memory.check(
            tokens=rows * (1 + (max_new_tokens or 1)),
            rows=rows,
            source_tokens=sum(_tokens(sources[index]) for index in together),
        )
        return sources, limit

    def _sampled(
        self,
        sources: list[Source],
        limit: int,
        options: CheckedOptions,
        constraints: Constraints,
        *,
        streams: bool = False,
    ) -> list[SampledSequence]:
        requests = self._requests(sources, limit, options, constraints)
        return [self._prompts.text(request, streams=streams) for request in requests]

    def _searched(
        self,
        sources: list[Source],
        search: BeamOptions,
        n_best: int,
        options: CheckedOptions,
        constraints: Constraints,
    ) -> list[BeamSequence]:
        requests = self._requests(sources, search.max_tokens, options, constraints)
        return [
            BeamSequence(request, search, n_best=n_best, tokenizer=self.tokenizer)
            for request in requests
        ]

    def _requests(
        self,
        sources: list[Source],
        limit: int,
        options: CheckedOptions,
        constraints: Constraints,
    ) -> list[Request]:
        return [
            options.request(
                [self._start],
                limit=limit,
                prompt_tokens=_tokens(source),
                source=source,
                constraints=constraints,
                index=index,
            )
            for index, source in enumerate(sources)
        ]

    def _beam_options(
        self, beams: int, limit: int, length_penalty: float, early_stopping: EarlyStopping
    ) -> BeamOptions:
        return BeamOptions(
            beams=beams,
            eos=frozenset(self.manifest.tokens.eos),
            max_tokens=limit,
            length_penalty=checked_length_penalty(length_penalty),
            early_stopping=checked_early_stopping(early_stopping),
        )

    def _run(
        self,
        texts: Sequence[SampledSequence] | Sequence[BeamSequence],
        sources: list[Source],
        beams: int,
    ) -> list[Completion]:
        if not texts:
            return []
        generator = self._generator(len(texts), beams=beams)
        for index in _by_length(sources):
            generator.submit(texts[index])
        generator.run()
        return [text.completion() for text in texts]

    def _rules(self, first: str | int | None) -> Constraints:
        """The constraints of the checkpoint, but for the first token where one is given."""
        if first is None:
            return self._constraints
        if not isinstance(first, str):
            ids = [checked_integer("first", first)]
        elif self.tokenizer is None:
            raise no_tokenizer("first")
        else:
            ids = self.tokenizer.encode(first, add_special_tokens=False)
        if len(ids) != 1:
            raise InputError(
                f"first: expected one token, got {first!r:.40}, which has {len(ids)}. "
                "Give a token of the tokenizer, such as that of a language, or its id."
            )
        (token,) = checked_ids(ids, vocab_size=self.manifest.vocab_size, what="first", fewest=1)
        return replace(self._constraints, first=token)

    def serve(self, **_: Any) -> NoReturn:
        """Serving is for decoders, so far.

        Raises:
            BundleKindError: always.
        """
        raise wrong_kind(self.manifest, what="serve", expected="a decoder")

    def _generator(self, texts: int, *, beams: int = 1) -> Generator:
        slots = min(texts, max(1, MAX_ROWS // beams))
        return Generator(self._engine, slots=slots, beams=beams, encode=self._encoded)

    def _encoded(self, sources: Sequence[Source]) -> Encoded:
        return self._engine.encode_sources(self._reader.feeds(sources))


def _by_length(sources: Sequence[Source]) -> list[int]:
    """Indices of sources, the longest first: texts from sources of similar length are too."""
    return sorted(range(len(sources)), key=lambda index: -_tokens(sources[index]))


def _tokens(source: Source) -> int:
    """Length of a source; an image counts as one, all of them being of one size."""
    return len(source) if isinstance(source, list) else 1
