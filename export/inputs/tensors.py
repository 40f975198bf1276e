"""Inputs of a model as tensors: texts, pairs and images, to calibrate or to prove with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ortolan.export.exportable import Exportable
from ortolan.runtime.bundle.manifest import ImageSource
from ortolan.runtime.inputs.tokenizer import Tokenizer

_WORD = "a"
"""The special tokens around it are those around every text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Inputs of a model, in order.

    Attributes:
        sources: what the encoder takes of each: ids `(T,)` or pixels `(C, H, W)`; none where there
            is no encoder.
        ids: what the decoder takes of each, `(S,)`; none where there is no decoder.
        origin: where they come from, in words; None where nobody asks.
    """

    sources: Sequence[Tensor] = ()
    ids: Sequence[Tensor] = ()
    origin: str | None = None


def calls(model: Exportable, inputs: Inputs) -> list[Callable[[], Tensor]]:
    """What computes the output of a model for each input (`ortolan.export.streamed.run`)."""
    nothing: list[Tensor | None] = [None] * max(len(inputs.sources), len(inputs.ids))
    sources, ids = inputs.sources or nothing, inputs.ids or nothing
    return [partial(model.forward, *given) for given in zip(sources, ids, strict=True)]


def text_inputs(model: Exportable, texts: Sequence[NDArray[np.int64]]) -> Inputs:
    """Texts for a decoder or an encoder alone."""
    ids = [torch.from_numpy(text) for text in texts]
    return Inputs(sources=ids) if model.sides.has_encoder else Inputs(ids=ids)


def pair_inputs(
    pairs: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> Inputs:
    """Sources, and what a decoder takes after each."""
    return Inputs(
        sources=[torch.from_numpy(source) for source, _ in pairs],
        ids=[torch.from_numpy(ids) for _, ids in pairs],
    )


def image_inputs(model: Exportable, images: NDArray[np.uint8]) -> Inputs:
    """Images `(N, H, W, C)`, as bytes, for an encoder alone.

    Raises:
        TypeError: it takes no images.
    """
    if not isinstance(model.takes, ImageSource):
        raise TypeError("expected a model that takes images")
    return Inputs(sources=list(torch.from_numpy(pixels(images, model.takes))))


def pixels(images: NDArray[np.uint8], source: ImageSource) -> NDArray[np.float32]:
    """Images `(N, H, W, C)` as the input of an encoder, `(N, C, H, W)`.

    By the formula of the manifest, not by the runtime's code, which is judged by it.
    """
    mean, std = (np.array(each, np.float32) for each in (source.mean, source.std))
    values = (images.astype(np.float32) * np.float32(source.scale) - mean) / std
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2), np.float32)


def encode_pair(
    model: Exportable, tokenizer: Tokenizer, pair: tuple[str, str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A source, and its target after the start token: what a decoder is trained with."""
    source, target = (np.array(tokenizer.encode(text), np.int64) for text in pair)
    start = [] if model.tokens.start is None else [model.tokens.start]
    ids = np.concatenate((np.array(start, np.int64), target))
    return source[: longest_source(model)], ids[: model.context_length]


def longest_source(model: Exportable) -> int:
    """Tokens of the longest text that the encoder takes."""
    match model.takes:
        case None | ImageSource():
            return model.context_length
        case text:
            return text.max_tokens


def around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer adds before and after a text."""
    bare = tokenizer.encode(_WORD, add_special_tokens=False)
    whole = tokenizer.encode(_WORD)
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return whole[:start], whole[start + len(bare) :]
    return [], []


def wrapped(
    body: NDArray[np.int64], length: int, special: tuple[list[int], list[int]]
) -> NDArray[np.int64]:
    """The first ids of a text between its special tokens, `length` in all."""
    before, after = (np.array(ids, np.int64) for ids in special)
    room = length - len(before) - len(after)
    if room < 1:
        return body[:length]
    return np.concatenate((before, body[:room], after))
