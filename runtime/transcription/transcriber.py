"""Transcribes sounds of any length, window by window.

Each window gives segments, and the next one begins at the end of the last whole segment, so that no
word is cut in two. A model without times reads parts that end at a quiet place, and each is a
segment. Windows of several sounds are computed together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypedDict

from ortolan.runtime.arguments import checked_flag, checked_number, refuse_unknown
from ortolan.runtime.bundle.manifest import Manifest, Speech, wrong_kind
from ortolan.runtime.bundle.sound_sources import AudioSource, WaveSource
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.options import Cancel, Options
from ortolan.runtime.generation.request import Request
from ortolan.runtime.generation.request_reader import RequestReader
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.inputs.audio import Sound, read_blocks, read_samples
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.runtime.transcription.recording import (
    TOKENS_PER_SECOND,
    Window,
    Windows,
    windows_of,
)
from ortolan.runtime.transcription.timestamps import Span, TimeRule, spans
from ortolan.runtime.transcription.transcript import Segment, Transcript

MOST_TOKENS = 1000.0
"""Bound of `tokens_per_second`."""

Run = Callable[[Sequence[Request]], list[Completion]]
"""Computes requests together."""

Opening = tuple[tuple[int, ...], ...]
"""The tokens to choose from at each position before the text: language, task, no times."""


class TranscribeOptions(TypedDict, total=False):
    """Options of a transcription, all optional.

    Attributes:
        language: code of the spoken language, such as `de`; `None`, the default, recognizes it in
            the first window.
        translate: translate into English.
        timestamps: whether the model writes times, if it can; `True` by default. Without them, a
            sound has one segment and must fit into a window. A model that cannot write times has a
            segment for each part of a sound.
        tokens_per_second: most tokens of a text for each second, for models that read waves, which
            may repeat themselves; 6.5 by default, as recommended for English.
        rate: samples per second of arrays; `None`, the default, for the rate of the encoder.
        sampling: how tokens are chosen; `None`, the default, takes the most probable.
        cancel: a function or an event, polled between calls of the model. The result is what was
            transcribed by then.
    """

    language: str | None
    translate: bool
    timestamps: bool
    tokens_per_second: float
    rate: int | None
    sampling: Sampling | None
    cancel: Cancel | None


@dataclass(slots=True)
class _Hearing:
    """A sound and what was understood of it; `seconds` is the length of a whole one."""

    windows: Windows
    opening: Opening
    seconds: float = 0.0
    segments: list[Segment] = field(default_factory=list)
    is_cancelled: bool = False

    @property
    def has_ended(self) -> bool:
        return self.is_cancelled or self.windows.is_done


class Transcriber:
    """Transcribes with the encoder-decoder of a bundle."""

    def __init__(
        self,
        manifest: Manifest,
        requests: RequestReader,
        tokenizer: Tokenizer | None,
        run: Run,
        *,
        start: int,
        options: TranscribeOptions,
    ) -> None:
        if not isinstance(manifest.source, AudioSource | WaveSource):
            raise wrong_kind(manifest, what="transcribe", expected="a bundle that reads sounds")
        refuse_unknown("transcribe", options, TranscribeOptions.__optional_keys__)
        self._source, self._eos = manifest.source, manifest.tokens.eos
        self._windows = partial(
            windows_of,
            source=manifest.source,
            context_length=manifest.context_length,
            tokens_per_second=_pace(manifest.source, options),
        )
        self._start = start
        self._speech = manifest.speech
        self._requests, self._tokenizer, self._run = requests, tokenizer, run
        self._rate = options.get("rate")
        self._options: Options = {
            "sampling": options.get("sampling"),
            "cancel": options.get("cancel"),
            "logprobs": 0,
        }
        has_times = checked_flag("timestamps", options.get("timestamps", True))
        self._times = self._speech if has_times else None
        self._opening = _opening(self._speech, manifest.tokens.opening, options)

    def whole(self, sounds: Sequence[Sound]) -> list[Transcript]:
        """Transcribe whole sounds; see `Seq2Seq.transcribe`."""
        heard = []
        for sound in sounds:
            samples_N = read_samples(sound, self._source, rate=self._rate)
            seconds = len(samples_N) / self._source.rate
            if self._speech and not self._times and len(samples_N) > self._source.samples:
                raise InputError(
                    f"timestamps=False is for sounds of at most {self._source.seconds:g} seconds "
                    f"(got {seconds:.1f}). Leave it out, or split the sound."
                )
            heard.append(_Hearing(self._windows(samples_N), self._opening, seconds))
        while left := [hearing for hearing in heard if not hearing.has_ended]:
            for hearing, segments in zip(left, self._listen(left), strict=True):
                hearing.segments += segments
        return [
            Transcript(
                segments=tuple(hearing.segments),
                seconds=hearing.seconds,
                language=self._language(hearing),
            )
            for hearing in heard
        ]

    def live(self, blocks: Iterable[Sound]) -> Iterator[Segment]:
        """Transcribe a sound while it is recorded; see `Seq2Seq.listen`."""
        if not isinstance(blocks, Iterable) or isinstance(blocks, str | bytes):
            raise InputError(
                f"listen needs an iterable of blocks of samples (got {shown(blocks)})."
            )
        return self._live(blocks)

    def _live(self, blocks: Iterable[Sound]) -> Iterator[Segment]:
        hearing = _Hearing(self._windows(None), self._opening)
        for samples_N in read_blocks(blocks, self._source, rate=self._rate):
            hearing.windows.extend(samples_N)
            while hearing.windows.is_full and not hearing.is_cancelled:
                yield from self._listen([hearing])[0]
        while not hearing.has_ended:
            yield from self._listen([hearing])[0]

    def _listen(self, heard: Sequence[_Hearing]) -> list[list[Segment]]:
        """The segments of a window of each sound; the next one is that after them."""
        windows = [hearing.windows.window() for hearing in heard]
        done = self._run(list(map(self._request, heard, windows)))
        return list(map(self._understood, heard, windows, done))

    def _request(self, hearing: _Hearing, window: Window) -> Request:
        """The request for the text of a window."""
        options: Options = {**self._options, "max_new_tokens": window.most_tokens}
        (request,) = self._requests.sources([window.source], options, start=self._start)
        constraints = replace(
            request.constraints,
            opening=hearing.opening,
            rule=None if self._times is None else TimeRule(self._times, self._eos[0]),
        )
        return replace(request, constraints=constraints)

    def _understood(
        self, hearing: _Hearing, window: Window, completion: Completion
    ) -> list[Segment]:
        """The segments of a window. Moves to the next one."""
        if completion.finish_reason == "cancelled":
            hearing.is_cancelled = True
            return []
        skip, length = len(hearing.opening), window.vectors
        hearing.opening = tuple((token,) for token in completion.tokens[:skip])
        tokens = completion.tokens[skip:]
        logprobs = [entry.logprob for entry in completion.logprobs or ()][skip:]
        if tokens and tokens[-1] in self._eos:
            tokens = tokens[:-1]
        if self._times is None:
            found, moved = [Span(0, length, slice(0, len(tokens)))], length
        else:
            first = self._times.first_timestamp
            found, moved = spans(tokens, first_timestamp=first, length=length)
        begin, second = hearing.windows.start, self._source.step_s
        hearing.windows.move(None if moved >= length else moved)
        return [
            Segment(
                start=begin + min(span.start * second, window.seconds),
                end=begin + min(span.end * second, window.seconds),
                text=self._text(tokens[span.part]),
                tokens=tokens[span.part],
                logprob=sum(logprobs[span.part]) / max(1, len(logprobs[span.part])),
            )
            for span in found
            if tokens[span.part]
        ]

    def _text(self, tokens: Sequence[int]) -> str:
        if self._tokenizer is None:
            return ""
        first = None if self._speech is None else self._speech.first_timestamp
        words = [token for token in tokens if first is None or token < first]
        return self._tokenizer.decode(words).strip()

    def _language(self, hearing: _Hearing) -> str | None:
        if self._speech is None or not hearing.opening or len(hearing.opening[0]) != 1:
            return None
        (token,) = hearing.opening[0]
        return next((code for code, own in self._speech.languages.items() if own == token), None)


def _pace(source: AudioSource | WaveSource, options: TranscribeOptions) -> float:
    """Most tokens per second."""
    if "tokens_per_second" not in options:
        return TOKENS_PER_SECOND
    if isinstance(source, AudioSource):
        raise InputError(
            "tokens_per_second is for models that read waves, such as Moonshine. Leave it out."
        )
    pace = checked_number("tokens_per_second", options["tokens_per_second"], most=MOST_TOKENS)
    if pace <= 0:
        raise InputError(f"tokens_per_second must be above 0 (got {pace:g}).")
    return pace


def _opening(
    speech: Speech | None, usual: Sequence[int | None], options: TranscribeOptions
) -> Opening:
    """The tokens before the text: the `usual` ones where no language or task is named."""
    language, translate = options.get("language"), options.get("translate", False)
    task = "translate" if checked_flag("translate", translate) else "transcribe"
    languages = {} if speech is None else speech.languages
    tasks = {} if speech is None else speech.tasks
    if language is not None and not (isinstance(language, str) and language in languages):
        only = "None, since the model knows only one"
        allowed = f"one of {', '.join(sorted(languages))}" if languages else only
        raise InputError(f"language must be {allowed} (got {shown(language)}).")
    if translate and task not in tasks:
        raise InputError("translate: this model was not trained to translate. Leave it out.")
    known = [*languages.values()] if language is None else [languages[language]]
    parts = [tuple(known), (tasks[task],) if task in tasks else ()]
    if usual and language is None and not translate:
        parts = [tuple(known) if token is None else (token,) for token in usual]
    if speech is not None and not options.get("timestamps", True):
        parts.append((speech.no_timestamps,))
    return tuple(part for part in parts if part)
