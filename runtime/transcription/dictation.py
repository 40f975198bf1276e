"""Transcribes with a chat model that reads sounds, such as Qwen3-ASR.

The model answers a message that holds a sound: it names the language and writes down the words. A
long sound is cut where it is quietest.

    sound     ..... hello there ......
    answer    language English<asr_text>Hello there.

Shape letters: N samples.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import refuse_unknown
from ortolan.runtime.bundle.manifest import Manifest, wrong_kind
from ortolan.runtime.bundle.parts import Dictation
from ortolan.runtime.bundle.sound_sources import ChunkedSource
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.options import Cancel, cancel_function
from ortolan.runtime.inputs.audio import Sound, read_samples
from ortolan.runtime.transcription.recording import quiet_cut
from ortolan.runtime.transcription.transcript import Segment, Transcript

if TYPE_CHECKING:
    from ortolan.runtime.encoder import Encoder

LONGEST_S = 120
"""Longest part of a sound."""

TOKENS_PER_SECOND, MORE_TOKENS = 12, 32
"""Most tokens of an answer: faster than anybody speaks, and some for the name of the language."""

Ask = Callable[[NDArray[np.float32], str | None, int], Completion]
"""Answers samples `(N,)`, from a given start if there is one, within a number of tokens."""


class DictationOptions(TypedDict, total=False):
    """Options of a transcription by a chat model, all optional.

    Attributes:
        language: code of the spoken language, such as `de`; `None`, the default, recognizes it in
            every part.
        rate: samples per second of arrays; `None`, the default, for the rate of the encoder.
        cancel: a function or an event, polled between parts. The result is what was transcribed by
            then.
    """

    language: str | None
    rate: int | None
    cancel: Cancel | None


def dictation_of(manifest: Manifest, encoder: "Encoder | None") -> tuple[ChunkedSource, Dictation]:
    """Return what a chat model hears, and how it writes it down."""
    source = None if encoder is None else encoder.manifest.source
    if not isinstance(manifest.dictation, Dictation) or not isinstance(source, ChunkedSource):
        raise wrong_kind(
            manifest, what="transcribe", expected="a bundle that turns sounds into text"
        )
    return source, manifest.dictation


def dictate(
    sound: Sound,
    source: ChunkedSource,
    dictation: Dictation,
    answer: Ask,
    options: DictationOptions,
) -> Transcript:
    """Transcribe a whole sound; see `Decoder.transcribe`."""
    refuse_unknown("transcribe", options, DictationOptions.__optional_keys__)
    language, is_cancelled = options.get("language"), cancel_function(options.get("cancel"))
    start = None if language is None else _start(language, dictation)
    samples_N = read_samples(sound, source, rate=options.get("rate"))
    segments, heard, at = list[Segment](), language, 0
    for part_N in _parts(samples_N, source.rate):
        if is_cancelled is not None and is_cancelled():
            break
        seconds = len(part_N) / source.rate
        most = round(seconds * TOKENS_PER_SECOND) + MORE_TOKENS
        done = answer(part_N, start, most)
        named, text = _read(done.text, dictation)
        heard = heard or named
        logprobs = [entry.logprob for entry in done.logprobs or ()]
        start_s = at / source.rate
        segments.append(
            Segment(
                start=start_s,
                end=start_s + seconds,
                text=text,
                tokens=done.tokens,
                logprob=sum(logprobs) / max(1, len(logprobs)),
            )
        )
        at += len(part_N)
    return Transcript(
        segments=tuple(segments), seconds=len(samples_N) / source.rate, language=heard
    )


def _start(language: str, dictation: Dictation) -> str:
    """The start of an answer in a language."""
    name = dictation.languages.get(language) if isinstance(language, str) else None
    if name is None:
        raise InputError(
            f"language must be one of {', '.join(sorted(dictation.languages))} (got "
            f"{shown(language)}). Leave it out to recognize it."
        )
    return f"{dictation.language}{name}{dictation.text}"


def _read(answer: str, dictation: Dictation) -> tuple[str | None, str]:
    """The code of the language that an answer names, if it does, and its words."""
    before, mark, text = answer.rpartition(dictation.text)
    if not mark:
        return None, answer.strip()
    name = before.strip().removeprefix(dictation.language.strip()).strip()
    codes = {name: code for code, name in dictation.languages.items()}
    return codes.get(name), text.strip()


def _parts(samples_N: NDArray[np.float32], rate: int) -> Iterator[NDArray[np.float32]]:
    """Cut samples into parts of at most `LONGEST_S`, at the quietest place near their ends."""
    while True:
        end = quiet_cut(samples_N, rate=rate, longest=LONGEST_S * rate)
        yield samples_N[:end]
        if end == len(samples_N):
            return
        samples_N = samples_N[end:]
