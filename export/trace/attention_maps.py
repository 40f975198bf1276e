"""Attention maps as a graph: what each token attends to, whole texts at once."""

from collections.abc import Iterator
from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.trace.encoder import as_input, source_example, source_inputs
from ortolan.export.trace.program import Entry, Signature, trace
from ortolan.export.trace.sides import Sides, sides_of
from ortolan.modeling import EncoderDecoderModel, EncoderModel
from ortolan.modeling.config import (
    AttentionConfig,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    StackConfig,
)
from ortolan.modeling.models.attention_maps import attention_maps
from ortolan.modeling.models.model import TransformerModel
from ortolan.runtime.bundle.interface import IDS, TARGET_IDS


def map_names(sides: Sides) -> tuple[str, ...]:
    """Names of the maps of attention, in the order of the layers."""
    kinds = ("self", "cross") if sides.encoder else ("self",)
    return (
        *(f"encoder.{i}.self" for i in _attending(sides.encoder)),
        *(f"decoder.{i}.{kind}" for i in _attending(sides.decoder) for kind in kinds),
    )


def _attending(side: StackConfig | None) -> Iterator[int]:
    """The numbers of the layers that have attention."""
    for number, block in enumerate(side.blocks if side else ()):
        if isinstance(block.mixer, AttentionConfig):
            yield number


class _DecoderMaps(Entry):
    def forward(self, input_ids: Tensor) -> list[Tensor]:
        return attention_maps(cast(TransformerModel, self.model), input_ids)


class _EncoderMaps(Entry):
    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        encoder = cast(EncoderModel, self.model)
        return attention_maps(encoder, as_input(encoder, inputs), lengths)


class _EncoderDecoderMaps(Entry):
    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, target_ids: Tensor | None = None
    ) -> list[Tensor]:
        model = cast(EncoderDecoderModel, self.model)
        return attention_maps(model, as_input(model.encoder, inputs), lengths, target_ids)


class _ImageDecoderMaps(Entry):
    def forward(self, pixels: Tensor, target_ids: Tensor) -> list[Tensor]:
        model = cast(EncoderDecoderModel, self.model)
        return attention_maps(model, as_input(model.encoder, pixels), None, target_ids)


def trace_decoder_maps(config: DecoderConfig, *, dtype: torch.dtype) -> ir.Model:
    """Trace the maps of a decoder.

    Args:
        config: what to trace.
        dtype: of weights and activations; maps are float32 in any case.
    """

    def signature(config: DecoderConfig) -> Signature:
        # One text: there are no lengths to tell padding from it.
        ids = torch.zeros(1, 3, dtype=torch.int64)
        outputs = map_names(sides_of(config))
        return Signature(arguments=(ids,), axes=({1: "sequence"},), inputs=(IDS,), outputs=outputs)

    return trace(config, dtype, _DecoderMaps, signature)


def trace_encoder_maps(config: EncoderConfig, *, dtype: torch.dtype) -> ir.Model:
    """Trace the maps of an encoder; see `trace_decoder_maps`."""

    def signature(config: EncoderConfig) -> Signature:
        arguments, axes = source_example(config, "batch", "tokens")
        return Signature(
            arguments=arguments,
            axes=axes,
            inputs=source_inputs(config),
            outputs=map_names(sides_of(config)),
        )

    return trace(config, dtype, _EncoderMaps, signature)


def trace_encoder_decoder_maps(config: EncoderDecoderConfig, *, dtype: torch.dtype) -> ir.Model:
    """Trace the maps of an encoder-decoder; see `trace_decoder_maps`."""

    def signature(config: EncoderDecoderConfig) -> Signature:
        ids = torch.zeros(2, 3, dtype=torch.int64)
        arguments, axes = source_example(config.encoder, "batch", "source")
        return Signature(
            arguments=(*arguments, ids),
            axes=(*axes, {0: "batch", 1: "sequence"}),
            inputs=(*source_inputs(config.encoder), TARGET_IDS),
            outputs=map_names(sides_of(config)),
        )

    entry = _EncoderDecoderMaps if sides_of(config).patches is None else _ImageDecoderMaps
    return trace(config, dtype, entry, signature)
