"""Runs a model of `ortolan.modeling` without a cache on one input, as `Forward` wants it."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ortolan.modeling.config import (
    ChunkedAudioInput,
    DecoderConfig,
    EncoderConfig,
    GridInput,
    GridPositions,
    ModelConfig,
    NormConfig,
)
from ortolan.modeling.layers.cache import LayerCache, StepLengths, empty_cache
from ortolan.modeling.layers.embeddings import Features
from ortolan.modeling.layers.grid import Grid, flat_patches
from ortolan.modeling.models.encoder import EncoderModel
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.transformer import DecoderModel
from ortolan.runtime.verification.probes import probe_grids


def forward_of(config: ModelConfig) -> Callable[..., Tensor]:
    """The function from a module, a source and ids to the output; see `Forward`."""
    match config:
        case DecoderConfig(state_norm=NormConfig()):
            return _forward_head
        case ModelConfig(feature_token_id=int()):
            return _forward_images
        case EncoderConfig(input=ChunkedAudioInput() as chunked):
            return partial(_forward_chunks, chunked)
        case EncoderConfig(input=GridInput() as grid):
            return partial(_forward_grid, grid)
        case _:
            return _forward


def _forward(module: TransformerModel, source: Tensor | None, ids: Tensor | None) -> Tensor:
    if source is not None and source.ndim == 2 and not source.is_floating_point():
        # ids and types
        out: Tensor = module(source[:1], None, source[1:])
        return out[0]
    inputs = [tensor[None] for tensor in (source, ids) if tensor is not None]
    out = module(*inputs)
    return out[0]


def _forward_chunks(
    config: ChunkedAudioInput, encoder: EncoderModel, mel: Tensor | None, ids: Tensor | None
) -> Tensor:
    if mel is None or ids is not None:
        raise TypeError("expected an encoder of spectrograms and one of them")
    frames = mel.shape[1]
    count = config.vectors(frames)
    padded = torch.nn.functional.pad(mel, (0, -frames % config.chunk))
    chunks = padded.reshape(len(mel), -1, config.chunk).transpose(0, 1)
    out: Tensor = encoder(chunks, torch.tensor([count]))
    return out[0, :count]


def _forward_grid(
    config: GridInput, encoder: EncoderModel, pixels: Tensor | None, ids: Tensor | None
) -> Tensor:
    if pixels is None or ids is not None:
        raise TypeError("expected an encoder of images and one of them")
    positions, grid = encoder.config.positions, None
    if isinstance(positions, GridPositions):
        rows, columns = (side // config.patch_size for side in pixels.shape[1:])
        grid = Grid.of((rows, columns), config.merge, positions)
    out: Tensor = encoder(flat_patches(pixels, config), grid=grid)
    return out[0]


def _forward_images(decoder: DecoderModel, vectors: Tensor | None, ids: Tensor | None) -> Tensor:
    token = decoder.config.feature_token_id
    if ids is None or token is None:
        raise TypeError("expected a decoder of images and its ids")
    grids = probe_grids(ids.tolist(), token) if decoder.config.has_axes else None
    features = None if vectors is None else Features.of(vectors, ids[None], token, grids)
    out: Tensor = decoder(ids[None], features)
    return out[0]


def _forward_head(head: DecoderModel, states: Tensor | None, ids: Tensor | None) -> Tensor:
    if ids is None or states is None:
        raise TypeError("expected a head, its ids and states")
    out: Tensor = head(ids[None], previous_BSE=states[None])
    return out[0]


def cached(decoder: DecoderModel, ids: Tensor) -> Sequence[LayerCache]:
    """The KV cache of a decoder after ids; see `Cached`."""
    tokens = len(ids)
    empty = empty_cache(decoder.config, batch=1, capacity=tokens)
    last = torch.tensor([[tokens - 1]])
    _, present = decoder.step(ids[None], StepLengths.first(tokens), empty, last)
    return [layer for layer in present if isinstance(layer, LayerCache)]
