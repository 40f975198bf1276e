"""Inputs of a model as tensors: texts, pairs, images and sounds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ortolan.export.exportable import Exportable
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.sound_sources import AudioSource, ChunkedSource, WaveSource
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.inputs.tokenizer import Tokenizer

_WORD = "a"
"""Word for finding the special tokens around a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Inputs of a model, in order.

    Attributes:
        sources: ids `(T,)`, ids and token types `(2, T)`, pixels `(C, H, W)`, a spectrogram
            `(bins, frames)` or a wave `(samples,)` of the encoder; empty without an encoder.
        vectors: of images `(F, E)` for a decoder that reads them, None for a text alone; or
            states `(S, E)` for a head; else empty.
        ids: ids `(S,)` of the decoder; empty without a decoder.
        origin: describes where they come from, for the manifest.
    """

    sources: Sequence[Tensor] = ()
    vectors: Sequence[Tensor | None] = ()
    ids: Sequence[Tensor] = ()
    origin: str | None = None

    @property
    def pairs(self) -> list[tuple[Tensor | None, Tensor | None]]:
        """Source and ids of each input; None for what the model does not have."""
        nothing: Sequence[Tensor | None] = [None] * max(len(self.sources), len(self.ids))
        sources, ids = self.sources or self.vectors or nothing, self.ids or nothing
        return list(zip(sources, ids, strict=True))


def calls(model: Exportable, inputs: Inputs) -> list[Callable[[], Tensor]]:
    """Calls of a model, one per input, for `ortolan.export.streamed.run`."""
    return [partial(model.forward, *pair) for pair in inputs.pairs]


def text_inputs(model: Exportable, texts: Sequence[NDArray[np.int64]]) -> Inputs:
    """Texts for a decoder-only or encoder-only model."""
    ids = [torch.from_numpy(text) for text in texts]
    return Inputs(sources=ids) if model.sides.has_encoder else Inputs(ids=ids)


def typed_inputs(texts: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Inputs:
    """Texts of an encoder with the type of each token."""
    return Inputs(sources=[torch.from_numpy(np.stack(text)) for text in texts])


def pair_inputs(
    pairs: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> Inputs:
    """Sources and the decoder's ids for each."""
    return Inputs(
        sources=[torch.from_numpy(source) for source, _ in pairs],
        ids=[torch.from_numpy(ids) for _, ids in pairs],
    )


def image_inputs(model: Exportable, images: Iterable[NDArray[np.uint8]]) -> Inputs:
    """Images `(H, W, C)`, as bytes, for an encoder-only model."""
    if not isinstance(model.source, ImageSource | PatchSource):
        raise TypeError("expected a model that takes images")
    source = model.source
    return Inputs(sources=[torch.from_numpy(pixels(image[None], source)[0]) for image in images])


def pixels(images: NDArray[np.uint8], source: ImageSource | PatchSource) -> NDArray[np.float32]:
    """Images `(N, H, W, C)` as the input of an encoder, `(N, C, H, W)`.

    Independent of the runtime's code, which this is a check of.
    """
    mean, std = (np.array(value, np.float32) for value in (source.mean, source.std))
    values = (images.astype(np.float32) * np.float32(source.scale) - mean) / std
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2), np.float32)


def spectrogram(
    samples_N: NDArray[np.float32], source: AudioSource | ChunkedSource
) -> NDArray[np.float32]:
    """A sound of at most one spectrogram as the input of an encoder, `(bins, frames)`.

    Independent of the runtime's code, which this is a check of.
    """
    size = source.samples if isinstance(source, AudioSource) else len(samples_N)
    padded_N = torch.zeros(size, dtype=torch.float64)
    padded_N[: len(samples_N)] = torch.from_numpy(samples_N)
    spectrum_WF = torch.stft(
        padded_N,
        source.window,
        source.hop,
        window=torch.hann_window(source.window, dtype=torch.float64),
        pad_mode="reflect",
        return_complex=True,
    )[:, : size // source.hop]
    power_MF = _triangles(source) @ spectrum_WF.abs().square()
    levels_MF = power_MF.clamp(min=1e-10).log10()
    levels_MF = levels_MF.clamp(min=float(levels_MF.max()) - 8)
    values: NDArray[np.float32] = ((levels_MF + 4) / 4).to(torch.float32).numpy()
    return values


def heard(
    samples_N: NDArray[np.float32], source: AudioSource | WaveSource | ChunkedSource
) -> NDArray[np.float32]:
    """A sound as the input of an encoder, `(samples,)` or `(bins, frames)`."""
    if isinstance(source, WaveSource):
        return wave(samples_N, source)
    return spectrogram(samples_N, source)


def wave(samples_N: NDArray[np.float32], source: WaveSource) -> NDArray[np.float32]:
    """A sound as the input of an encoder of waves, `(samples,)`.

    Independent of the runtime's code, which this is a check of.
    """
    if not source.normalized:
        return samples_N
    exact_N = torch.from_numpy(samples_N).double()
    variance, mean = torch.var_mean(exact_N, correction=0)
    values: NDArray[np.float32] = ((exact_N - mean) * (variance + 1e-7).rsqrt()).float().numpy()
    return values


def _triangles(source: AudioSource | ChunkedSource) -> Tensor:
    """Filters `(bins, window // 2 + 1)`, each rising from one edge to the next and falling again.

    Slaney's scale (1998, "Auditory Toolbox"): steps of 66.7 Hz up to 1 kHz, and 27 steps for each
    factor of 6.4 above.
    """
    highest = 15 + 27 * np.log(source.highest / 1000) / np.log(6.4)
    highest = highest if source.highest >= 1000 else source.highest * 0.015
    steps = np.linspace(0, highest, source.bins + 2)
    edges = np.where(steps < 15, steps / 0.015, 1000 * 6.4 ** ((steps - 15) / 27))
    heard = np.linspace(0, source.rate // 2, source.window // 2 + 1)
    filters = [
        np.interp(heard, edges[bin : bin + 3], [0, 2 / (edges[bin + 2] - edges[bin]), 0])
        for bin in range(source.bins)
    ]
    return torch.from_numpy(np.stack(filters))


def encode_pair(
    model: Exportable, tokenizer: Tokenizer, pair: tuple[str, str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids of a source, and of its target after the start token."""
    source, target = (np.array(tokenizer.encode(text), np.int64) for text in pair)
    start = [] if model.tokens.start is None else [model.tokens.start]
    ids = np.concatenate((np.array(start, np.int64), target))
    return source[: longest_source(model)], ids[: model.context_length]


def longest_source(model: Exportable) -> int:
    """Longest text of the encoder, in tokens."""
    match model.source:
        case TextSource(max_tokens=most):
            return most
        case _:
            return model.context_length


def around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Special tokens that a tokenizer adds before and after a text."""
    bare = tokenizer.encode(_WORD, add_special_tokens=False)
    whole = tokenizer.encode(_WORD)
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return whole[:start], whole[start + len(bare) :]
    return [], []


def reads_types(model: Exportable) -> bool:
    """Whether the encoder reads token types."""
    return isinstance(model.source, TextSource) and model.source.types > 1


def as_pair(
    tokenizer: Tokenizer | None, ids: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A text of an encoder as two texts of together equally many tokens, with their types."""
    half = len(ids) // 2
    if tokenizer is None:
        return ids, np.array([0] * half + [1] * (len(ids) - half), np.int64)
    before, after = around(tokenizer)
    body = ids[len(before) : len(ids) - len(after)]
    word = tokenizer.encode(_WORD, add_special_tokens=False)
    both = tokenizer.encode_pair(_WORD, _WORD)
    types = both.types
    first = len(before)
    second = next(
        (at for at in range(first + len(word), len(both)) if both[at : at + len(word)] == word),
        None,
    )
    room = len(ids) - (len(both) - 2 * len(word))
    if second is None or room < 2:
        return ids, np.zeros_like(ids)
    sizes = room // 2, room - room // 2
    parts = [
        (both[:first], types[:first]),
        (body[: sizes[0]].tolist(), [types[first]] * sizes[0]),
        (both[first + len(word) : second], types[first + len(word) : second]),
        (body[sizes[0] : room].tolist(), [types[second]] * sizes[1]),
        (both[second + len(word) :], types[second + len(word) :]),
    ]
    return (
        np.array([token for tokens, _ in parts for token in tokens], np.int64),
        np.array([kind for _, kinds in parts for kind in kinds], np.int64),
    )


def wrapped(
    body: NDArray[np.int64], length: int, special: tuple[list[int], list[int]]
) -> NDArray[np.int64]:
    """Ids of a text between its special tokens, cut to `length` in all."""
    before, after = (np.array(ids, np.int64) for ids in special)
    room = length - len(before) - len(after)
    if room < 1:
        return body[:length]
    return np.concatenate((before, body[:room], after))
