"""Synthetic calibration inputs, for a model without a calibration file.

    decoder            texts that it writes at temperature 1 (Liu et al. 2023, "LLM-QAT")
    encoder-decoder    random sources, and the texts that it writes after them
    encoder of text    random words, since it cannot write
    images             noise with the spectrum of photographs
    sounds             noise with the spectrum of speech, and what the model writes after it

All are independent of the probes, which judge the bundle.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from ortolan.export.errors import ExportError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import PAIRS, SEQUENCE_LENGTH
from ortolan.export.inputs.tensors import (
    Inputs,
    around,
    heard,
    longest_source,
    pair_inputs,
    pixels,
    text_inputs,
    wrapped,
)
from ortolan.export.inputs.writer import SEED
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.sound_sources import AudioSource, ChunkedSource, WaveSource

Write = Callable[..., list[NDArray[np.int64]]]
"""`ortolan.export.inputs.writer.write` of one bundle."""

PAIR_LENGTH = 2 * SEQUENCE_LENGTH // PAIRS
"""Maximum tokens of a source, and of the text after it."""

_BEGINNINGS_PER_TEXT = 4
"""Beginnings per text of full length, since some end early."""

_SHORTEST = 4
"""Minimum tokens of a random text."""

_HEAD = 2.7
"""Offset to the rank of a word: Mandelbrot's correction of Zipf's law."""

PICTURE_SQUARES = 64
"""Most squares of patches of an image of noise, where the encoder reads several sizes."""

_CONTRAST = 48.0
"""Standard deviation of the bytes of an image."""


def synthetic_inputs(model: Exportable, write: Write, *, count: int) -> Inputs:
    """Calibration inputs that need no data."""
    random = np.random.default_rng(SEED)
    if not model.sides.has_encoder:
        return _own_texts(model, write, random, count)
    drawn, sources, described = _sources(model, random, count)
    if not model.sides.has_decoder:
        tensors = [torch.from_numpy(source) for source in sources]
        return Inputs(sources=tensors, origin=f"{described}, seed {SEED}")
    length = min(PAIR_LENGTH, model.context_length)
    written = write(drawn, tokens=0, length=length)
    pairs = [(source, text) for source, text in zip(sources, written, strict=True) if len(text)]
    if not pairs:
        raise _wrote_nothing()
    return replace(pair_inputs(pairs), origin=f"its own writing after {described}, seed {SEED}")


def _own_texts(model: Exportable, write: Write, random: np.random.Generator, count: int) -> Inputs:
    length = min(SEQUENCE_LENGTH, model.context_length)
    beginnings = _beginnings(model, random, _BEGINNINGS_PER_TEXT * count)
    written = list(filter(len, write(beginnings, tokens=count * length, length=length)))
    if not written:
        raise _wrote_nothing()
    total = sum(map(len, written))
    origin = f"its own writing: {total:,} tokens in {len(written)} texts, seed {SEED}"
    return replace(text_inputs(model, written), origin=origin)


def _beginnings(
    model: Exportable, random: np.random.Generator, count: int
) -> list[NDArray[np.int64]]:
    """Beginnings of texts: alternately the BOS token, and a word as if from the middle of a text.

    A word follows the tokenizer's leading special tokens. Without a BOS token all begin with words.
    """
    before = [] if model.tokenizer is None else around(model.tokenizer)[0]
    words = _words(_vocabulary(model), random, count).tolist()
    begun = [np.array([*before, word][-max(1, model.context_length - 1) :]) for word in words]
    if model.tokens.bos is not None:
        begun[::2] = [np.array([model.tokens.bos])] * len(begun[::2])
    return begun


def _sources(
    model: Exportable, random: np.random.Generator, count: int
) -> tuple[Sequence[NDArray[Any]], Sequence[NDArray[Any]], str]:
    """Random inputs of an encoder: as the runtime reads them, as the module does, and in words."""
    source, is_pair = model.source, model.sides.has_decoder
    match source:
        case ImageSource():
            images = noise((source.height, source.width, source.channels), random, count)
            return list(images), list(pixels(images, source)), f"{count} images of noise"
        case PatchSource():
            pictures = [_picture(source, random) for _ in range(count)]
            read = [pixels(picture[None], source)[0] for picture in pictures]
            return pictures, read, f"{count} images of noise in several sizes"
        case AudioSource() | WaveSource() | ChunkedSource():
            if isinstance(source, WaveSource) and not is_pair:
                # As many vectors as texts have tokens.
                vectors = min(SEQUENCE_LENGTH, source.vectors)
                source = msgspec.structs.replace(source, vectors=vectors)
            made = sounds(source, random, count)
            return made, [heard(sound, source) for sound in made], f"{count} sounds of noise"
    if is_pair:
        tokens = count * SEQUENCE_LENGTH // 2
        texts = _texts(model, random, tokens=tokens, longest=PAIR_LENGTH)
        return texts, texts, f"{len(texts)} random texts"
    texts = _texts(model, random, tokens=count * SEQUENCE_LENGTH, longest=SEQUENCE_LENGTH)
    return texts, texts, f"random words: {sum(map(len, texts)):,} tokens"


def _wrote_nothing() -> ExportError:
    return ExportError(
        "The model cannot write text to calibrate on: its logits are not finite. Pass "
        "--calibration FILE, or choose --effort quick."
    )


# --- random texts and images ----------------------------------------------------------------------


def _texts(
    model: Exportable, random: np.random.Generator, *, tokens: int, longest: int
) -> list[NDArray[np.int64]]:
    """Texts of random words and special tokens, with this number of tokens in all.

    Lengths are log-uniform, as likely 4 to 8 as 128 to 256, since attention depends on them.
    """
    special = ([], []) if model.tokenizer is None else around(model.tokenizer)
    longest = min(longest, longest_source(model))
    shortest = min(_SHORTEST, longest)
    vocabulary, texts = _vocabulary(model), list[NDArray[np.int64]]()
    while tokens > 0:
        length = int(shortest * (longest / shortest) ** random.random() + 0.5)
        texts.append(wrapped(_words(vocabulary, random, length), length, special))
        tokens -= length
    return texts


def _words(
    vocabulary: NDArray[np.int64], random: np.random.Generator, count: int
) -> NDArray[np.int64]:
    """Ids `(count,)` from a vocabulary, the first ones most often (Mandelbrot 1953)."""
    weights = np.cumsum(1 / (np.arange(len(vocabulary)) + 1 + _HEAD))
    return vocabulary[np.searchsorted(weights / weights[-1], random.random(count), side="right")]


def _vocabulary(model: Exportable) -> NDArray[np.int64]:
    """Ids of words and parts of words; all ids where these are few, or without a tokenizer.

    Tokenizers number their tokens from frequent to rare.
    """
    all_ids = np.arange(model.source_vocab_size if model.sides.has_encoder else model.vocab_size)
    if model.tokenizer is None:
        return all_ids
    labels = model.tokenizer.labels(all_ids.tolist())
    words = [number for number, label in enumerate(labels) if _is_word(label)]
    return np.array(words) if 2 * len(words) > len(all_ids) else all_ids


def _is_word(label: str) -> bool:
    text = label.strip()
    return len(text) > 1 and text.isalpha()


def _picture(source: PatchSource, random: np.random.Generator) -> NDArray[np.uint8]:
    """An image of noise `(H, W, C)` of random proportions, with up to `PICTURE_SQUARES` squares."""
    most = min(source.vectors, PICTURE_SQUARES)
    rows = int(most ** random.random())
    columns = most // rows
    shape = rows * source.square, columns * source.square, source.channels
    image: NDArray[np.uint8] = noise(shape, random, 1)[0]
    return image


def noise(
    shape: tuple[int, int, int], random: np.random.Generator, count: int
) -> NDArray[np.uint8]:
    """Images `(N, H, W, C)` whose amplitudes fall as 1 / frequency, as in photographs (Field 1987).

    `shape` is that of an image.
    """
    height, width, _ = shape
    rows, columns = np.fft.fftfreq(height), np.fft.rfftfreq(width)
    frequency = np.hypot(rows[:, None], columns)
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(random.standard_normal((count, *shape)), axes=(1, 2))
    drawn = np.fft.irfft2(spectrum / frequency[:, :, None], s=(height, width), axes=(1, 2))
    drawn *= _CONTRAST / np.maximum(drawn.std(axis=(1, 2, 3), keepdims=True), 1e-12)
    return (drawn + 128).clip(0, 255).astype(np.uint8)


def sounds(
    source: AudioSource | ChunkedSource | WaveSource, random: np.random.Generator, count: int
) -> list[NDArray[np.float32]]:
    """Sounds `(N,)` whose power falls as 1 / frequency, as in speech (Voss and Clarke 1975).

    Their lengths are log-uniform, and their loudness changes a few times a second.
    """
    made = []
    for _ in range(count):
        size = max(source.window, int(source.samples * (1 / 8) ** random.random()))
        frequency = np.fft.rfftfreq(size)
        frequency[0] = np.inf
        spectrum = np.fft.rfft(random.standard_normal(size)) / np.sqrt(frequency)
        steps = random.random(2 + 4 * size // source.rate)
        loudness = np.interp(np.linspace(0, len(steps) - 1, size), np.arange(len(steps)), steps)
        sound = np.fft.irfft(spectrum, size) * loudness
        made.append((0.5 * sound / max(np.abs(sound).max(), 1e-12)).astype(np.float32))
    return made
