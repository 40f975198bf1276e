"""Transcribes with an encoder and CTC: the most probable symbol of every vector, read as words.

    vectors    A A _ _ _ B B     the most probable symbols; `_` is the blank
    runs       A     _   B       neighbours that are equal are one
    symbols    A         B       without blanks; a space ends a word

Graves et al. 2006, "Connectionist Temporal Classification". A long sound is cut into windows that
overlap, of which the middle counts: its vectors have seen what is before and after them.

Shape letters: N samples, T vectors, V symbols.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import refuse_unknown
from ortolan.runtime.bundle.manifest import Manifest, wrong_kind
from ortolan.runtime.bundle.sound_sources import WaveSource
from ortolan.runtime.errors import ContextLengthError, TokenizerError
from ortolan.runtime.generation.options import Cancel, cancel_function
from ortolan.runtime.inputs.audio import Sound, read_samples, wave_of
from ortolan.runtime.transcription.transcript import Segment, Transcript, Word

SIDES = 6
"""A window has this many parts, of which neighbours decide the first and the last, as in
transformers' pipeline."""

PAUSE_S = 0.5
"""Seconds without a symbol between two words that end a segment."""

SPACE = " "

Compute = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Computes the logits `(T, V)` of a wave `(N,)`."""


class CtcOptions(TypedDict, total=False):
    """Options of a transcription with CTC, all optional.

    Attributes:
        rate: samples per second of arrays; `None`, the default, for the rate of the encoder.
        cancel: a function or an event, polled between windows. The result is what was transcribed
            by then.
    """

    rate: int | None
    cancel: Cancel | None


class _Run(NamedTuple):
    """A symbol at neighbouring vectors, from `start` to before `end`."""

    symbol: int
    start: int
    end: int


def transcribe_ctc(
    sound: Sound, manifest: Manifest, compute: Compute, options: CtcOptions
) -> Transcript:
    """Transcribe a whole sound; see `Encoder.transcribe`."""
    source, output, blank = manifest.source, manifest.output, manifest.tokens.pad
    if not isinstance(source, WaveSource) or output is None or output.kind != "ctc":
        raise wrong_kind(
            manifest, what="transcribe", expected="a bundle that turns sounds into text"
        )
    refuse_unknown("transcribe", options, CtcOptions.__optional_keys__)
    if not output.labels or blank is None:
        raise TokenizerError(
            "The checkpoint of this bundle had no vocab.json, so the symbols of its logits are "
            "not known. Call `logits`, or export it again with the file."
        )
    is_cancelled = cancel_function(options.get("cancel"))
    samples_N = read_samples(sound, source, rate=options.get("rate"))
    best, logprobs = [np.empty(0, np.int64)], [np.empty(0)]
    for read, counts in windows(len(samples_N), source):
        if is_cancelled is not None and is_cancelled():
            break
        logits_TV = compute(wave_of(samples_N[read], source))[counts].astype(np.float64)
        best.append(logits_TV.argmax(1))
        logprobs.append(-np.log(np.exp(logits_TV - logits_TV.max(1)[:, None]).sum(1)))
    runs = [run for run in _runs(np.concatenate(best)) if run.symbol != blank]
    logprobs_T, texts = np.concatenate(logprobs), output.labels
    return Transcript(
        segments=tuple(
            _segment(words, logprobs_T, texts, source.step_s)
            for words in _parted(_words(runs, texts), PAUSE_S / source.step_s)
        ),
        seconds=len(samples_N) / source.rate,
    )


def _runs(best_T: NDArray[np.int64]) -> Iterator[_Run]:
    """Join neighbours that are equal."""
    cuts = [0, *(np.flatnonzero(np.diff(best_T)) + 1).tolist(), len(best_T)]
    for start, end in pairwise(cuts):
        if start < end:
            yield _Run(int(best_T[start]), start, end)


def _words(runs: Iterable[_Run], texts: Sequence[str]) -> Iterator[list[_Run]]:
    """Split runs at spaces."""
    for is_space, word in groupby(runs, lambda run: texts[run.symbol] == SPACE):
        if not is_space:
            yield list(word)


def _parted(words: Iterable[list[_Run]], pause: float) -> list[list[list[_Run]]]:
    """Split words at pauses of this number of vectors."""
    parts: list[list[list[_Run]]] = []
    for word in words:
        if not parts or word[0].start - parts[-1][-1][-1].end >= pause:
            parts.append([])
        parts[-1].append(word)
    return parts


def _segment(
    words: Sequence[list[_Run]],
    logprobs_T: NDArray[np.float64],
    texts: Sequence[str],
    step_s: float,
) -> Segment:
    first, last = words[0][0], words[-1][-1]
    spoken = tuple(
        Word(
            start=word[0].start * step_s,
            end=word[-1].end * step_s,
            text="".join(texts[run.symbol] for run in word),
        )
        for word in words
    )
    return Segment(
        start=first.start * step_s,
        end=last.end * step_s,
        text=SPACE.join(word.text for word in spoken),
        tokens=tuple(run.symbol for word in words for run in word),
        logprob=float(logprobs_T[first.start : last.end].mean()),
        words=spoken,
    )


def windows(samples: int, source: WaveSource) -> Iterator[tuple[slice, slice]]:
    """Cut a sound into windows: samples to read, and those of their vectors that count.

    The vectors that count follow each other without a gap.

    A sound that fits is one window. Others are cut as transformers' pipeline does with a
    `chunk_length_s` of the encoder's `seconds`.
    """
    longest, side = source.vectors, source.vectors // SIDES
    if samples <= source.samples:
        yield slice(0, samples), slice(None)
        return
    # the last vectors of a window would read beyond it
    if side <= longest - source.length(source.samples):
        raise ContextLengthError(
            f"The encoder reads sounds of at most {source.seconds:g} seconds (got "
            f"{samples / source.rate:.2f}), too short to cut longer ones into windows. Export it "
            "with a larger --max-context, or split the sound."
        )
    start, is_last = 0, False
    while not is_last:
        first = start * source.hop
        is_last = first + source.samples >= samples
        yield (
            slice(first, min(first + source.samples, samples)),
            slice(side if start else 0, None if is_last else longest - side),
        )
        start += longest - 2 * side
