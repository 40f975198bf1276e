"""Traces an encoder: whole texts, images or sounds at once."""

from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.trace.program import Entry, Signature, trace
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

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        encoder = cast(EncoderModel, self.model)
        out: Tensor = encoder(as_input(encoder, inputs), lengths, types)
        return out.float()


class _GridGraph(Entry):
    """From the patches of an image and their places to the output of the head."""

    def forward(
        self,
        patches: Tensor,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        encoder = cast(EncoderModel, self.model)
        grid = None
        if rows is not None and columns is not None:
            grid = Grid(as_input(encoder, rows), as_input(encoder, columns), positions)
        out: Tensor = encoder(as_input(encoder, patches), grid=grid)
        return out.float()


def trace_encoder(config: EncoderConfig, *, dtype: torch.dtype) -> ir.Model:
    """Trace an encoder.

    Args:
        config: the model.
        dtype: of weights and activations; the output is always float32.
    """

    def signature(config: EncoderConfig) -> Signature:
        arguments, axes = source_example(config, "batch", "tokens")
        inputs = source_inputs(config)
        if token_types(config) > 1:
            arguments, axes = (*arguments, torch.zeros_like(arguments[0])), (*axes, axes[0])
            inputs = (*inputs, TYPES)
        return Signature(arguments=arguments, axes=axes, inputs=inputs, outputs=[OUTPUT])

    entry = _GridGraph if isinstance(config.input, GridInput) else _EncoderGraph
    return trace(config, dtype, entry, signature)


def token_types(config: EncoderConfig) -> int:
    """Number of token types that the graph reads: only some heads read pairs of texts."""
    match config:
        case EncoderConfig(
            input=TokenInput(types=types, reads_types=True), head=ClassifierHead(reads_pairs=True)
        ):
            return max(types, 1)
        case _:
            return 1


def source_inputs(config: EncoderConfig) -> tuple[str, ...]:
    """Names of an encoder's inputs."""
    match config.input:
        case PatchInput():
            return (PIXELS,)
        case GridInput() if isinstance(config.positions, GridPositions):
            places = (POSITIONS,) if config.has_axes else ()
            return (PATCHES, ROW_WEIGHTS, COLUMN_WEIGHTS, *places)
        case GridInput():
            return (PATCHES,)
        case AudioInput():
            return (MEL,)
        case WaveInput():
            return (WAVE,)
        case ChunkedAudioInput():
            return (MEL, LENGTHS)
        case _:
            return (IDS, LENGTHS)


def as_input(encoder: EncoderModel, inputs: Tensor) -> Tensor:
    """Cast pixels, spectrograms and waves to the type of the weights; return ids unchanged."""
    if not inputs.is_floating_point():
        return inputs
    return inputs.to(next(encoder.parameters()).dtype)


def source_example(
    config: EncoderConfig, batch: str, tokens: str
) -> tuple[tuple[Tensor, ...], tuple[object, ...]]:
    """Example inputs of an encoder, and the names of the axes that vary."""
    match config.input:
        case PatchInput(channels=channels, image_size=(height, width)):
            return (torch.zeros(2, channels, height, width),), ({0: batch},)
        case GridInput() as grid:
            return _grid_example(config, grid)
        case AudioInput(bins=bins, frames=frames):
            return (torch.zeros(2, bins, frames),), ({0: batch},)
        case ChunkedAudioInput(bins=bins, chunk=chunk):
            mel, count = torch.zeros(2, bins, chunk), torch.ones(1, dtype=torch.int32)
            return (mel, count), ({0: "chunks"}, {})
        case WaveInput(window=window, hop=hop):
            return (torch.zeros(2, window + 3 * hop),), ({0: batch, 1: "samples"},)
        case _:
            ids = torch.zeros(2, 4, dtype=torch.int64)
            lengths = torch.zeros(2, dtype=torch.int32)
            return (ids, lengths), ({0: batch, 1: tokens}, {0: batch})


def _grid_example(
    config: EncoderConfig, grid: GridInput
) -> tuple[tuple[Tensor, ...], tuple[object, ...]]:
    """Patches of two squares, and the weights of their positions."""
    sizes = [grid.numbers]
    if isinstance(config.positions, GridPositions):
        sizes += [config.positions.side] * 2
    examples = tuple(torch.zeros(2, grid.merge**2, size) for size in sizes)
    if config.has_axes:
        positions = torch.zeros(2, grid.merge**2, AXES, dtype=torch.int64)
        examples = (*examples, positions)
    return examples, tuple({0: "squares"} for _ in examples)
