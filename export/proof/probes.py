"""Probes: the inputs on which a bundle must agree with PyTorch.

decoder, encoder of text    texts of 1, 2, 33 and 160 tokens; with `proof="full"` up to 512
encoder of images           8 images, held out or noise of growing coarseness
encoder of images that keep  pictures of a few proportions
    their proportions
encoder of waves            sounds that give as many vectors as texts have tokens
encoder-decoder             16 held-out pairs, or sources that grow while targets shrink; after an
                            encoder of sounds, as many sounds
a user's own module         one more text over its whole context
a decoder with windows      one more text, after which its rows have moved
a decoder that reads images one more text, in which vectors replace some tokens; with windows, and
                            vectors that see each other, another one beyond the windows
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import (
    Calibration,
    CalibrationImages,
    CalibrationPairs,
    CalibrationText,
    spread,
)
from ortolan.export.inputs.tensors import (
    Inputs,
    around,
    as_pair,
    encode_pair,
    heard,
    image_inputs,
    longest_source,
    pair_inputs,
    reads_types,
    spectrogram,
    text_inputs,
    typed_inputs,
    wrapped,
)
from ortolan.export.options import Proof
from ortolan.export.proof.probe_text import TEXT
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.parts import Features
from ortolan.runtime.bundle.sound_sources import AudioSource, ChunkedSource, WaveSource
from ortolan.runtime.engine.windows import window_of
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.runtime.verification.probes import (
    PICTURES,
    probe_sound,
    probe_vectors,
    probe_wave,
    sized_picture,
)

LENGTHS: Mapping[Proof, tuple[int, ...]] = {
    "quick": (1, 2, 33, 160),
    "full": (1, 2, 5, 16, 33, 64, 128, 512),
}
"""Tokens of each probe: a single step, odd lengths, more than one chunk."""

WHOLE_WORK = 1 << 38
"""Maximum parameters times tokens of the whole-context probe of a user's own module, which allows
2,700 tokens at 100 million parameters."""

WINDOW_WORK = 1 << 42
"""Maximum parameters times tokens of the probe over a window: 4B parameters and a window of 512."""

WINDOW_TAIL = 64
"""Tokens of that probe after its rows have moved."""

SURROUNDING, VECTORS = 32, 96
"""Tokens of the text around vectors of images, and of the vectors, at most."""

PAIRS = 16
"""Held-out pairs that judge an encoder-decoder."""

IMAGES = 8
"""Images that judge an encoder."""

_CHARACTERS = 64
"""Characters to encode per token of the longest probe; more than enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeInput:
    """One input.

    Attributes:
        name: in the certificate.
        token_ids: int64 `(length,)`, of the decoder, or of an encoder-only model of text.
        source: int64 `(T,)`, of an encoder-decoder.
        image: uint8 `(H, W, C)`, of an encoder of images.
        mel: float32 `(bins, frames)`, of an encoder of spectrograms.
        sound: a wave float32 `(samples,)` or whole frames `(bins, frames)`, of an encoder that
            reads any length.
        types: int64 `(length,)`, of an encoder that reads token types.
        features: number of its tokens whose embeddings are replaced by `probe_vectors`.
    """

    name: str
    token_ids: NDArray[np.int64] | None = None
    source: NDArray[np.int64] | None = None
    image: NDArray[np.uint8] | None = None
    mel: NDArray[np.float32] | None = None
    sound: NDArray[np.float32] | None = None
    types: NDArray[np.int64] | None = None
    features: int = 0


def text_of(model: Exportable, data: Calibration | None) -> str:
    """Describes the text of the probes, for the certificate."""
    of_sounds = isinstance(model.source, AudioSource | WaveSource | ChunkedSource)
    text = "random ids" if model.tokenizer is None else "the built-in text"
    if data is not None:
        text = Path(data.origin).name
    elif isinstance(model.source, ImageSource):
        text = "random images"
    elif isinstance(model.source, PatchSource):
        text = "random images of several sizes"
    elif of_sounds:
        text = f"{text} after made-up sounds" if model.sides.has_decoder else "made-up sounds"
    last = model.switches_after
    if last is None or model.context_length <= last:
        return text
    # Those of the reference too.
    return f"{text} with the rotary frequencies of a text of {model.context_length} tokens"


def make_probes(
    model: Exportable,
    data: Calibration | None = None,
    *,
    proof: Proof = "full",
    windows: bool = False,
) -> list[ProbeInput]:
    """The probes of a model, from the held-out part of calibration data if there is any.

    Otherwise they are cut from `TEXT`, or are random ids without a tokenizer, or random images, all
    with a fixed seed.
    """
    if model.sides.reads_source:
        return _pair_probes(model, data, LENGTHS[proof])
    longest = max(whole_tokens(model) if model.check else 0, window_tokens(model) * windows)
    probes = _single_probes(model, data, LENGTHS[proof], longest)
    if model.features is not None:
        text = probes[-1]
        probes.append(_illustrated(model, model.features, text, len(probes), SURROUNDING))
        if model.min_call_tokens > 1 and window_tokens(model) * windows:
            probes.append(
                _illustrated(model, model.features, text, len(probes), model.context_length)
            )
    return probes


def _illustrated(
    model: Exportable, features: Features, text: ProbeInput, number: int, most: int
) -> ProbeInput:
    """A text of at most `most` tokens with vectors in two places."""
    if text.token_ids is None:
        raise TypeError("expected a text")
    count = min(VECTORS, model.context_length // 2)
    words = text.token_ids[: max(1, model.context_length - count)][:most]
    words = np.where(words == features.token, words[0], words)
    half = max(len(words) // 2, len(words) - SURROUNDING // 2)
    first, last = words[:half], words[half:]
    placeholders = np.full(count, features.token, np.int64)
    halves = placeholders[: count // 2], placeholders[count // 2 :]
    middle = last[:1]
    ids = np.concatenate((first, halves[0], middle, halves[1], last))[: model.context_length]
    name = f"{number}-{len(ids)}-tokens-and-vectors"
    return ProbeInput(name=name, token_ids=ids, features=int((ids == features.token).sum()))


def _single_probes(
    model: Exportable, data: Calibration | None, lengths: Sequence[int], more: int
) -> list[ProbeInput]:
    """Texts or sounds of growing length, or images, for a decoder-only or encoder-only model."""
    if isinstance(model.source, WaveSource | ChunkedSource):
        return _wave_probes(model.source, lengths)
    if isinstance(model.source, ImageSource | PatchSource):
        images = _images(model.source, data)
        return [
            ProbeInput(name=f"{number}-image", image=image) for number, image in enumerate(images)
        ]
    longest = model.context_length
    texts = _texts(model, data, [min(length, longest) for length in lengths])
    if more > lengths[-1]:
        texts += _texts(model, data, [more], repeats=True)
    return [_text_probe(model, number, ids) for number, ids in enumerate(texts)]


def _text_probe(model: Exportable, number: int, ids: NDArray[np.int64]) -> ProbeInput:
    """A text; every second one is a pair for an encoder that reads token types."""
    types = None
    if reads_types(model):
        types = np.zeros_like(ids)
        if number % 2:
            ids, types = as_pair(model.tokenizer, ids)
    return ProbeInput(name=f"{number}-{len(ids)}-tokens", token_ids=ids, types=types)


def whole_tokens(model: Exportable) -> int:
    """Tokens of the whole-context probe, as far as `WHOLE_WORK` allows."""
    return min(model.context_length, WHOLE_WORK // _size(model))


def window_tokens(model: Exportable) -> int:
    """Tokens of the probe over a window; 0 without windows, or where it would take too long."""
    window = window_of(
        model.states("float32"), model.context_length, min_call_tokens=model.min_call_tokens
    )
    if window is None:
        return 0
    tokens = min(window.kept + window.step + WINDOW_TAIL, model.context_length)
    return tokens if tokens * _size(model) <= WINDOW_WORK else 0


def _size(model: Exportable) -> int:
    return max(1, sum(parameter.numel() for parameter in model.module.parameters()))


def _pair_probes(
    model: Exportable, data: Calibration | None, lengths: Sequence[int]
) -> list[ProbeInput]:
    """Texts or images of the encoder, and texts of the decoder."""
    longest = model.context_length
    if isinstance(model.source, ImageSource):
        images = _images(model.source, data)[: len(lengths)]
        texts = _texts(model, data, [min(length, longest) for length in lengths])
        written = [_after_start(model, ids) for ids in texts]
        return [
            ProbeInput(name=f"{number}-{len(texts[number])}-tokens", token_ids=ids, image=image)
            for number, (ids, image) in enumerate(zip(written, images, strict=True))
        ]
    if isinstance(model.source, AudioSource):
        texts = _texts(model, None, [min(length, longest) for length in lengths])
        return [
            ProbeInput(
                name=f"{number}-sound-to-{len(ids)}-tokens",
                token_ids=_after_start(model, ids),
                mel=spectrogram(probe_sound(model.source, number), model.source),
            )
            for number, ids in enumerate(texts)
        ]
    if isinstance(model.source, WaveSource):
        # Sounds grow while texts shrink.
        sounds = _wave_probes(model.source, lengths)
        texts = _texts(model, data, [min(length, longest) for length in reversed(lengths)])
        return [
            replace(sound, name=f"{sound.name}-to-{len(ids)}-tokens", token_ids=ids)
            for sound, ids in zip(sounds, [_after_start(model, own) for own in texts], strict=True)
        ]
    if isinstance(data, CalibrationPairs) and model.tokenizer is not None:
        chosen = [data.held_out[place] for place in spread(len(data.held_out), PAIRS)]
        pairs = [encode_pair(model, model.tokenizer, pair) for pair in chosen]
    else:
        # Sources grow while targets shrink.
        most, room = longest_source(model), max(longest - 1, 1)
        sources = _texts(model, data, [min(length, most) for length in lengths])
        targets = _texts(model, data, [min(length, room) for length in reversed(lengths)])
        pairs = list(zip(sources, [_after_start(model, ids) for ids in targets], strict=True))
    return [
        ProbeInput(
            name=f"{number}-{len(source)}-to-{len(ids)}-tokens", source=source, token_ids=ids
        )
        for number, (source, ids) in enumerate(pairs)
    ]


def _wave_probes(source: WaveSource | ChunkedSource, lengths: Sequence[int]) -> list[ProbeInput]:
    """Sounds that give these numbers of vectors."""
    most = source.length(source.samples) if isinstance(source, WaveSource) else source.vectors
    return [
        ProbeInput(
            name=f"{number}-{min(length, most)}-vectors",
            sound=heard(probe_wave(source, number, min(length, most)), source),
        )
        for number, length in enumerate(lengths)
    ]


def inputs_of(model: Exportable, probes: Sequence[ProbeInput]) -> Inputs:
    """Probes as inputs of the model."""
    ids = [probe.token_ids for probe in probes if probe.token_ids is not None]
    sources: list[NDArray[Any]] = [
        source for probe in probes for source in (probe.source, probe.mel) if source is not None
    ]
    images = [probe.image for probe in probes if probe.image is not None]
    sounds = [torch.from_numpy(probe.sound) for probe in probes if probe.sound is not None]
    if sounds:
        return Inputs(sources=sounds, ids=[torch.from_numpy(own) for own in ids])
    if sources:
        return pair_inputs(list(zip(sources, ids, strict=True)))
    types = [probe.types for probe in probes if probe.types is not None]
    if types:
        return typed_inputs(list(zip(ids, types, strict=True)))
    if model.features is not None:
        size = model.features.size
        vectors = [
            torch.from_numpy(probe_vectors(probe.features, size)) if probe.features else None
            for probe in probes
        ]
        return Inputs(vectors=vectors, ids=text_inputs(model, ids).ids)
    if model.hidden is not None and model.hidden.head is None:
        size = model.hidden.size
        states = [torch.from_numpy(probe_vectors(len(text), size)) for text in ids]
        return Inputs(vectors=states, ids=text_inputs(model, ids).ids)
    if not images:
        return text_inputs(model, ids)
    pixels = image_inputs(model, images).sources
    return Inputs(sources=pixels, ids=text_inputs(model, ids).ids)


def _images(source: ImageSource | PatchSource, data: Calibration | None) -> list[NDArray[np.uint8]]:
    """Held-out images, or noise of growing coarseness or several sizes, `(H, W, C)` each."""
    if isinstance(source, PatchSource):
        return [sized_picture(source, number) for number in range(len(PICTURES))]
    if isinstance(data, CalibrationImages):
        return list(data.held_out[spread(len(data.held_out), IMAGES)])
    random, images = np.random.default_rng(0), []
    for number in range(IMAGES):
        block = 1 << number // 2
        shape = (-(-source.height // block), -(-source.width // block), source.channels)
        noise = random.integers(0, 256, shape, np.uint8)
        image = noise.repeat(block, 0).repeat(block, 1)
        images.append(image[: source.height, : source.width])
    return images


def _after_start(model: Exportable, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The start token and ids, cut to the context."""
    start = [] if model.tokens.start is None else [model.tokens.start]
    return np.concatenate((np.array(start, np.int64), ids))[: model.context_length]


def _texts(
    model: Exportable, data: Calibration | None, lengths: Sequence[int], *, repeats: bool = False
) -> list[NDArray[np.int64]]:
    """Texts of these lengths, each from another place, with the special tokens of an encoder.

    Text that is too short is an error, unless it `repeats`.
    """
    special: tuple[list[int], list[int]] = ([], [])
    if model.tokenizer is None:
        size = min(model.vocab_size, model.source_vocab_size)
        stream = np.random.default_rng(0).integers(0, size, sum(lengths))
        if model.original is not None and size > 1:
            # Many models of transformers count positions without the padding's id.
            stream = np.where(stream == model.tokens.pad, (stream + 1) % size, stream)
    else:
        is_decoder = not model.sides.has_encoder
        special = special if is_decoder else around(model.tokenizer)
        text = data if isinstance(data, CalibrationText) else None
        stream = _encode(
            model.tokenizer, text, max(lengths), with_special=is_decoder, repeats=repeats
        )
    texts, start = [], 0
    for length in lengths:
        start = start if start + length <= len(stream) else 0
        texts.append(wrapped(stream[start : start + length], length, special))
        start += length
    return texts


def _encode(
    tokenizer: Tokenizer,
    data: CalibrationText | None,
    longest: int,
    *,
    with_special: bool,
    repeats: bool = False,
) -> NDArray[np.int64]:
    """Ids of the text; `TEXT` always repeats until the longest probe fits."""
    part = TEXT if data is None else data.held_out[: longest * _CHARACTERS]
    ids = np.array(tokenizer.encode(part, add_special_tokens=with_special), np.int64)
    if (data is None or repeats) and len(ids) > 0:
        ids = np.tile(ids, -(-longest // len(ids)))
    if len(ids) < longest:
        origin = "the text" if data is None else data.origin
        raise OptionError(
            f"{origin} needs at least {longest} tokens to judge the bundle by (got {len(ids)}). "
            "Use a longer text."
        )
    return ids
