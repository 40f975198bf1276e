"""What a model is calibrated on where nobody gives anything: drawn at random, or its own writing.

    decoder            texts that it writes itself, at temperature 1 (Liu et al. 2023, "LLM-QAT")
    encoder-decoder    sources drawn at random, and what it writes after each
    encoder of texts   words drawn at random: it has no distribution of texts to draw from
    images             noise whose spectrum falls as that of photographs

Nothing here depends on the text of the probes, by which the bundle is judged.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.export.errors import ExportError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import PAIRS, SEQUENCE_LENGTH
from ortolan.export.inputs.tensors import (
    Inputs,
    around,
    image_inputs,
    longest_source,
    pair_inputs,
    pixels,
    text_inputs,
    wrapped,
)
from ortolan.export.inputs.writer import SEED
from ortolan.runtime.bundle.manifest import ImageSource

Write = Callable[..., list[NDArray[np.int64]]]
"""`ortolan.export.inputs.writer.write`, but for the bundle and who is told."""

PAIR_LENGTH = 2 * SEQUENCE_LENGTH // PAIRS
"""Tokens of a source, or of what is written after it, at most."""

_TEXTS_FOR_EACH = 4
"""Texts to begin for each that would fill its length: some end early."""

_SHORTEST = 4
"""Tokens of a random text, at least."""

_HEAD = 2.7
"""Added to the rank of a word: Mandelbrot's correction to Zipf's law."""

_CONTRAST = 48.0
"""Standard deviation of the bytes of an image, around their middle."""


def synthetic_inputs(model: Exportable, write: Write, *, count: int) -> Inputs:
    """Inputs to calibrate on that need no data.

    Args:
        model: the model.
        write: lets a bundle of it write; not called for an encoder alone.
        count: sequences of 256 tokens, images, or groups of eight pairs.

    Raises:
        ExportError: the model writes nothing.
    """
    random = np.random.default_rng(SEED)
    if not model.sides.has_decoder:
        return _drawn(model, random, count)
    if not model.sides.has_encoder:
        return _own_texts(model, write, random, count)
    return _own_pairs(model, write, random, count)


def _own_texts(model: Exportable, write: Write, random: np.random.Generator, count: int) -> Inputs:
    length = min(SEQUENCE_LENGTH, model.context_length)
    beginnings = _beginnings(model, random, _TEXTS_FOR_EACH * count)
    written = [
        text for text in write(beginnings, tokens=count * length, length=length) if len(text)
    ]
    if not written:
        raise _wrote_nothing()
    total = sum(map(len, written))
    origin = f"its own writing: {total:,} tokens in {len(written)} texts, seed {SEED}"
    return replace(text_inputs(model, written), origin=origin)


def _beginnings(
    model: Exportable, random: np.random.Generator, count: int
) -> list[NDArray[np.int64]]:
    """What texts begin with: in turn the token for it, and a word, which leads into their midst.

    A word comes after what the tokenizer puts before every text; without a token to begin with,
    all texts begin with words.
    """
    before = [] if model.tokenizer is None else around(model.tokenizer)[0]
    words = _words(_vocabulary(model), random, count).tolist()
    begun = [np.array([*before, word][-max(1, model.context_length - 1) :]) for word in words]
    if model.tokens.bos is not None:
        begun[::2] = [np.array([model.tokens.bos])] * len(begun[::2])
    return begun


def _own_pairs(model: Exportable, write: Write, random: np.random.Generator, count: int) -> Inputs:
    """Sources, and what the model writes after each."""
    length = min(PAIR_LENGTH, model.context_length)
    if isinstance(model.takes, ImageSource):
        images = noise(model.takes, random, count)
        given: Sequence[NDArray[Any]] = list(images)
        sources: Sequence[NDArray[Any]] = list(pixels(images, model.takes))
        what = f"{count} images of noise"
    else:
        tokens = count * SEQUENCE_LENGTH // 2
        given = sources = _texts(model, random, tokens=tokens, longest=PAIR_LENGTH)
        what = f"{len(sources)} random texts"
    written = write(given, tokens=0, length=length)
    pairs = [(source, text) for source, text in zip(sources, written, strict=True) if len(text)]
    if not pairs:
        raise _wrote_nothing()
    return replace(pair_inputs(pairs), origin=f"its own writing after {what}, seed {SEED}")


def _drawn(model: Exportable, random: np.random.Generator, count: int) -> Inputs:
    """What an encoder alone is given."""
    if isinstance(model.takes, ImageSource):
        images = noise(model.takes, random, count)
        origin = f"{count} images of noise, seed {SEED}"
        return replace(image_inputs(model, images), origin=origin)
    texts = _texts(model, random, tokens=count * SEQUENCE_LENGTH, longest=SEQUENCE_LENGTH)
    origin = f"random words: {sum(map(len, texts)):,} tokens, seed {SEED}"
    return replace(text_inputs(model, texts), origin=origin)


def _wrote_nothing() -> ExportError:
    return ExportError(
        "calibration: expected the model to write texts, got logits that are not finite. "
        "Give --calibration FILE, or choose --method rtn."
    )


# --- random texts and images ----------------------------------------------------------------------


def _texts(
    model: Exportable, random: np.random.Generator, *, tokens: int, longest: int
) -> list[NDArray[np.int64]]:
    """Texts of random words, special tokens included, with so many tokens in all.

    Lengths are as often from 4 to 8 as from 128 to 256: what attention sees depends on them.
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
    """Ids `(count,)` of a vocabulary, those that stand first often (Mandelbrot 1953)."""
    weights = np.cumsum(1 / (np.arange(len(vocabulary)) + 1 + _HEAD))
    return vocabulary[np.searchsorted(weights / weights[-1], random.random(count), side="right")]


def _vocabulary(model: Exportable) -> NDArray[np.int64]:
    """Ids of words and parts of words; all ids where that would be few, or nothing is known.

    Tokenizers are trained from frequent to rare, and number their tokens in this order.
    """
    every = np.arange(model.source_vocab_size if model.sides.has_encoder else model.vocab_size)
    if model.tokenizer is None:
        return every
    labels = model.tokenizer.labels(every.tolist())
    words = [number for number, label in enumerate(labels) if _is_word(label)]
    return np.array(words) if 2 * len(words) > len(every) else every


def _is_word(label: str) -> bool:
    text = label.strip()
    return len(text) > 1 and text.isalpha()


def noise(source: ImageSource, random: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """Images `(N, H, W, C)` whose amplitudes fall as 1 / frequency, as in photographs (Field 1987).

    Args:
        source: their size.
        random: draws them.
        count: N.
    """
    shape = (count, source.height, source.width, source.channels)
    rows, columns = np.fft.fftfreq(source.height), np.fft.rfftfreq(source.width)
    frequency = np.hypot(rows[:, None], columns)
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(random.standard_normal(shape), axes=(1, 2))
    drawn = np.fft.irfft2(
        spectrum / frequency[:, :, None], s=(source.height, source.width), axes=(1, 2)
    )
    drawn *= _CONTRAST / np.maximum(drawn.std(axis=(1, 2, 3), keepdims=True), 1e-12)
    return (drawn + 128).clip(0, 255).astype(np.uint8)
