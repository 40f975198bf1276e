"""Traces an encoder: whole texts, images or sounds at once."""

from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.trace.program import Entry, Feeds, GraphInput, Signature, trace
from ortolan.modeling import EncoderModel
from ortolan.modeling.config import (
    AudioInput,
    ChunkedAudioInput,
    ClassifierHead,
    EncoderConfig,
    GridInput,
    GridPositions,
    PatchInput,
    TokenInput,
    WaveInput,
)
from ortolan.modeling.config.positions import AXES
from ortolan.modeling.layers.grid import Grid
from ortolan.runtime.bundle.interface import OUTPUT
from ortolan.runtime.bundle.source import (
    COLUMN_WEIGHTS,
    IDS,
    LENGTHS,
    MEL,
    PATCHES,
    PIXELS,
    POSITIONS,
    ROW_WEIGHTS,
    TYPES,
    WAVE,
)


class _EncoderGraph(Entry):
    """From texts, images or sounds to the output of the head."""

    def forward(self, feeds: Feeds) -> Tensor:
        encoder = cast(EncoderModel, self.model)
        inputs, grid = source_of(encoder, feeds), None
        if ROW_WEIGHTS in feeds:
            rows, columns = (as_input(encoder, feeds[n]) for n in (ROW_WEIGHTS, COLUMN_WEIGHTS))
            grid = Grid(rows, columns, feeds.get(POSITIONS))
        out: Tensor = encoder(inputs, feeds.get(LENGTHS), feeds.get(TYPES), grid=grid)
        return out.float()


def trace_encoder(config: EncoderConfig, *, dtype: torch.dtype) -> ir.Model:
    """Trace an encoder.

    Args:
        config: the model.
        dtype: of weights and activations; the output is always float32.
    """

    def signature(config: EncoderConfig) -> Signature:
        inputs = source_inputs(config, "batch", "tokens")
        if token_types(config) > 1:
            ids = inputs[0]
            inputs.append(GraphInput(TYPES, torch.zeros_like(ids.example), ids.axes))
        return Signature(inputs, [OUTPUT])

    return trace(config, dtype, _EncoderGraph, signature)


def token_types(config: EncoderConfig) -> int:
    """Number of token types that the graph reads: only some heads read pairs of texts."""
    match config:
        case EncoderConfig(
            input=TokenInput(types=types, reads_types=True), head=ClassifierHead(reads_pairs=True)
        ):
            return max(types, 1)
        case _:
            return 1


def source_of(encoder: EncoderModel, feeds: Feeds) -> Tensor:
    """The first input of an encoder; pixels, spectrograms and waves in the type of the weights."""
    return as_input(encoder, next(iter(feeds.values())))


def as_input(encoder: EncoderModel, inputs: Tensor) -> Tensor:
    """Cast numbers to the type of the weights; return ids unchanged."""
    if not inputs.is_floating_point():
        return inputs
    return inputs.to(next(encoder.parameters()).dtype)


def source_inputs(config: EncoderConfig, batch: str, tokens: str) -> list[GraphInput]:
    """The inputs of an encoder, with these names of its axes."""
    match config.input:
        case PatchInput(channels=channels, image_size=(height, width)):
            return [GraphInput(PIXELS, torch.zeros(2, channels, height, width), {0: batch})]
        case GridInput() as grid:
            return _grid_inputs(config, grid)
        case AudioInput(bins=bins, frames=frames):
            return [GraphInput(MEL, torch.zeros(2, bins, frames), {0: batch})]
        case ChunkedAudioInput(bins=bins, chunk=chunk):
            return [
                GraphInput(MEL, torch.zeros(2, bins, chunk), {0: "chunks"}),
                GraphInput(LENGTHS, torch.ones(1, dtype=torch.int32)),
            ]
        case WaveInput(window=window, hop=hop):
            return [
                GraphInput(WAVE, torch.zeros(2, window + 3 * hop), {0: batch, 1: "samples"}),
            ]
        case _:
            return [
                GraphInput(IDS, torch.zeros(2, 4, dtype=torch.int64), {0: batch, 1: tokens}),
                GraphInput(LENGTHS, torch.zeros(2, dtype=torch.int32), {0: batch}),
            ]


def _grid_inputs(config: EncoderConfig, grid: GridInput) -> list[GraphInput]:
    """Patches of two squares, and the weights of their positions."""
    sizes = {PATCHES: grid.numbers}
    if isinstance(config.positions, GridPositions):
        sizes |= dict.fromkeys((ROW_WEIGHTS, COLUMN_WEIGHTS), config.positions.side)
    examples = {name: torch.zeros(2, grid.merge**2, size) for name, size in sizes.items()}
    if config.has_axes:
        examples[POSITIONS] = torch.zeros(2, grid.merge**2, AXES, dtype=torch.int64)
    return [GraphInput(name, example, {0: "squares"}) for name, example in examples.items()]
