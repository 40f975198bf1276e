"""A loaded encoder-decoder: texts, ids or images in; texts out.

Knows how requests are written and checks them, and which sources are computed together. Does not
know how sources are read (`ortolan.runtime.inputs.source`), nor how texts are found
(`ortolan.runtime.generation.translate`).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import Manifest, wrong_kind
from ortolan.runtime.engine.memory_plan import RequestMemory
from ortolan.runtime.engine.runner import chunks, feed
from ortolan.runtime.engine.session import Engine
from ortolan.runtime.errors import ContextLengthError, InputError, ManifestError, NumericError
from ortolan.runtime.generation.beam_options import (
    MAX_BEAMS,
    checked_early_stopping,
    checked_length_penalty,
    refuse_beam_options,
    refuse_sampling_options,
)
from ortolan.runtime.generation.beam_search import BeamOptions, EarlyStopping
from ortolan.runtime.generation.constraints import Constraints
from ortolan.runtime.generation.generate import TextStream, rows_of
from ortolan.runtime.generation.request import (
    Cancel,
    asked,
    checked_count,
    no_tokenizer,
    open_tokenizer,
    sampling_of,
)
from ortolan.runtime.generation.row import Request
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.generation.translate import Found, Translator
from ortolan.runtime.generation.translation import Translation, from_row, from_search
from ortolan.runtime.inputs.ids import TokenIds, checked_ids
from ortolan.runtime.inputs.source import Input, Source, SourceReader

__all__ = ["MAX_SOURCES", "Seq2Seq"]

MAX_SOURCES = 4096
"""Sources of one call."""

MAX_ROWS = 64
"""Rows, of all beams of all sources, that are computed together; more fill no core better."""

One = Input
"""A text or its token ids; or a path, the bytes or the pixels of an image."""

Several = list[str] | list[Sequence[int]] | list[list[int]] | list[NDArray[Any]] | list[Path]
"""Several of them, of any lengths."""


class Seq2Seq:
    """A bundle ready to translate. Several threads may use one at once.

    A source is a text, or its token ids; where the encoder takes images, the path of a file, its
    contents, or uint8 pixels. Ids are taken as they are; a text gets the special tokens of its
    tokenizer.

    Attributes:
        bundle: what it was loaded from.
        tokenizer: `None` when the bundle takes only ids.
    """

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        manifest = bundle.manifest
        if manifest.kind != "encoder-decoder":
            raise wrong_kind(manifest, what="Seq2Seq", expected="an encoder-decoder")
        if manifest.tokens.start is None:
            raise ManifestError(
                "manifest.json: expected the token that a text begins with, got none. "
                "Export the checkpoint again, with a decoder_start_token_id."
            )
        self.bundle = bundle
        self.tokenizer = open_tokenizer(bundle)
        self._engine = engine
        self._start = manifest.tokens.start
        self._constraints = Constraints.of(manifest.tokens)
        self._memory = RequestMemory(manifest)
        self._reader = SourceReader(manifest, self.tokenizer)
        self._translator = Translator(engine, start=self._start, tokens=manifest.tokens)

    @property
    def manifest(self) -> Manifest:
        """What the bundle holds."""
        return self.bundle.manifest

    @property
    def device(self) -> str:
        """The device in use."""
        return self._engine.device

    @property
    def device_reason(self) -> str:
        """Why it is this device."""
        return self._engine.device_reason

    @property
    def threads(self) -> int:
        """Threads within one operator."""
        return self._engine.threads

    @overload
    def generate(
        self,
        source: One,
        *,
        beams: int = 1,
        n_best: int = 1,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        cancel: Cancel | None = None,
    ) -> Translation: ...

    @overload
    def generate(
        self,
        source: Several,
        *,
        beams: int = 1,
        n_best: int = 1,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        cancel: Cancel | None = None,
    ) -> list[Translation]: ...

    def generate(
        self,
        source: One | Several,
        *,
        beams: int = 1,
        n_best: int = 1,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        cancel: Cancel | None = None,
    ) -> Translation | list[Translation]:
        """Write the text of a source, or of several.

        Sources of similar length are computed together, and each gives what it gives alone:
        source number `b` of a list with seed `s` is the same as that source with seed `s + b`.

        Args:
            source: one, or a list of them, of any lengths.
            beams: texts to search at once; 1 takes one token after the other (`sampling`).
            n_best: texts to give for each source, at most `beams`.
            length_penalty: above 0 favours long texts, below 0 short ones; only for beams.
            early_stopping: when a search is over; see `ortolan.runtime.generation.beam_search`.
            max_new_tokens: most new tokens of each text; `None` for all that the decoder takes.
            sampling: how tokens are chosen; `None` takes the most probable. Not for beams.
            temperature: short for a `sampling` with nothing but this.
            stop: texts that end the text and are not part of it. Not for beams.
            cancel: a function or an event, asked between any two calls of the model.

        Returns:
            A translation; a list of them for a list of sources.

        Raises:
            ContextLengthError: a source, or the new tokens, are more than the model takes.
            MemoryPlanError: they need more memory than is left.
            InputError: anything else is wrong with the request.
            NumericError: the model gave logits that are not finite.
            ForkedError: the process was forked after the model was loaded.
        """
        beams = checked_count("beams", beams, most=MAX_BEAMS)
        sources, limit = self._fitting(source, beams, max_new_tokens)
        if beams == 1:
            refuse_beam_options(n_best, length_penalty, early_stopping)
            chosen = sampling_of(sampling, temperature)
            request = self._request(len(sources), limit, chosen, stop, asked(cancel))
            done = self._write(sources, request)
        else:
            refuse_sampling_options(sampling, temperature, stop)
            options = BeamOptions(
                beams=beams,
                eos=frozenset(self.manifest.tokens.eos),
                max_tokens=limit,
                length_penalty=checked_length_penalty(length_penalty),
                early_stopping=checked_early_stopping(early_stopping),
            )
            count = checked_count("n_best", n_best, most=beams)
            done = self._search(sources, options, count, asked(cancel))
        return done if _is_batch(source) else done[0]

    def stream(
        self,
        source: One,
        *,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        cancel: Cancel | None = None,
    ) -> TextStream:
        """Write the text of a source, and give it piece by piece.

        The request is checked at once; nothing is computed before the first piece is asked for.
        Closing or dropping the stream cancels it. There is no stream of a beam search, which
        knows its text at the end.

        Args:
            source: as for `generate`, but a single one.
            max_new_tokens: as for `generate`.
            sampling: as for `generate`.
            temperature: as for `generate`.
            stop: as for `generate`.
            cancel: as for `generate`.

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
        if _is_batch(source):
            raise InputError("stream: expected one source, got a list of them. Use `generate`.")
        sources, limit = self._fitting(source, 1, max_new_tokens)
        chosen = sampling_of(sampling, temperature)
        request = self._request(1, limit, chosen, stop, asked(cancel))
        (row,) = rows_of(request, self.tokenizer, vocab_size=self.manifest.vocab_size, streams=True)
        row.prompt_tokens = _tokens(sources[0])
        return TextStream(
            row, self._translator.write([row], self._reader.feeds(sources), request.cancelled)
        )

    def logits(self, source: One, ids: TokenIds) -> NDArray[np.float32]:
        """Compute the logits behind every token of a text, teacher-forced.

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
        if _is_batch(source):
            raise InputError("logits: expected one source, got a list of them.")
        tokens = checked_ids(ids, vocab_size=self.manifest.vocab_size, what="ids")
        if not tokens:
            raise InputError("ids: expected at least one token id, got none.")
        encoded = self._engine.encode_source(self._reader.feeds(self._sources(source)))
        logits_SV = np.empty((len(tokens), self.manifest.vocab_size), np.float32)
        cache = self._engine.cache()
        cache.reserve(len(tokens))
        for start, part in chunks(self._engine, cache, tokens):
            rows = logits_SV[start : start + len(part)]
            positions = range(len(part))
            feed(self._engine, cache, part, positions=positions, logits_RV=rows, source=encoded)
        if not np.isfinite(logits_SV.max(axis=-1)).all():
            raise NumericError(
                "logits: expected finite ones, got others. Run `ortolan verify` on the bundle."
            )
        return logits_SV

    def _sources(self, given: Any) -> list[Source]:
        """Read all sources before anything is computed."""
        several: list[Any] = list(given) if _is_batch(given) else [given]
        if not 1 <= len(several) <= MAX_SOURCES:
            raise InputError(f"sources: expected 1 to {MAX_SOURCES}, got {len(several)}.")
        return [self._reader.read(each) for each in several]

    def _limit(self, max_new_tokens: int | None) -> int:
        room = self.manifest.context_length - 1  # the start token
        if max_new_tokens is None:
            return max(1, room)
        if checked_count("max_new_tokens", max_new_tokens) > room:
            raise ContextLengthError(
                f"context: expected at most {room} new tokens behind the start token, got "
                f"{max_new_tokens}. Lower max_new_tokens."
            )
        return max_new_tokens

    def _fitting(
        self, given: Any, beams: int, max_new_tokens: int | None
    ) -> tuple[list[Source], int]:
        """Read all sources and the limit; refuse what cannot fit into memory."""
        sources, limit = self._sources(given), self._limit(max_new_tokens)
        together = _groups(sources, max(1, MAX_ROWS // beams))
        lengths = [_tokens(sources[index]) for index in next(together)]
        rows = len(lengths) * beams
        self._memory.check(
            tokens=rows * (1 + (max_new_tokens or 1)),
            rows=rows,
            source_tokens=sum(lengths),
        )
        return sources, limit

    def _request(
        self,
        count: int,
        limit: int,
        sampling: Sampling,
        stop: Sequence[str],
        cancelled: Callable[[], bool],
    ) -> Request:
        if len(stop) > 0 and self.tokenizer is None:
            raise no_tokenizer("stop")
        return Request(
            prompts=([self._start],) * count,
            limits=(limit,) * count,
            sampling=sampling,
            eos=frozenset(self.manifest.tokens.eos),
            stop=stop,
            cancelled=cancelled,
            constraints=self._constraints,
        )

    def _write(self, sources: list[Source], request: Request) -> list[Translation]:
        rows = rows_of(request, self.tokenizer, vocab_size=self.manifest.vocab_size, streams=False)
        for row, source in zip(rows, sources, strict=True):
            row.prompt_tokens = _tokens(source)
        for group in _groups(sources, MAX_ROWS):
            feeds = self._reader.feeds([sources[index] for index in group])
            written = [rows[index] for index in group]
            for _ in self._translator.write(written, feeds, request.cancelled):
                pass
        return [from_row(row) for row in rows]

    def _search(
        self,
        sources: list[Source],
        options: BeamOptions,
        count: int,
        cancelled: Callable[[], bool],
    ) -> list[Translation]:
        found: dict[int, Found] = {}
        for group in _groups(sources, max(1, MAX_ROWS // options.beams)):
            results = self._translator.search(
                options,
                self._reader.feeds([sources[index] for index in group]),
                count=count,
                constraints=self._constraints,
                cancelled=cancelled,
            )
            found.update(zip(group, results, strict=True))
        return [
            from_search(
                found[index], self.tokenizer, eos=options.eos, source_tokens=_tokens(source)
            )
            for index, source in enumerate(sources)
        ]


def _groups(sources: Sequence[Source], most: int) -> Iterator[list[int]]:
    """Indices of sources to compute together: of similar length, since texts are then too."""
    order = sorted(range(len(sources)), key=lambda index: -_tokens(sources[index]))
    for start in range(0, len(order), most):
        yield order[start : start + most]


def _tokens(source: Source) -> int:
    """Length of a source; an image counts as one, all of them being of one size."""
    return len(source) if isinstance(source, list) else 1


def _is_batch(source: Any) -> bool:
    """Whether a source is a list of sources."""
    if not isinstance(source, list | tuple):
        return False
    return len(source) == 0 or not isinstance(source[0], int | np.integer)
