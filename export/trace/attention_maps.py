"""What each token attends to, as a graph: whole texts at once, without a cache."""

from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.trace.encoder import as_input, source_example, source_inputs
from ortolan.export.trace.names import map_names
from ortolan.export.trace.program import Entry, Signature, trace
from ortolan.modeling import Encoder, EncoderDecoder
from ortolan.modeling.config import EncoderConfig, EncoderDecoderConfig, ModelConfig, PatchInput
from ortolan.modeling.models.attention_maps import attention_maps


class _DecoderMaps(Entry):
    def forward(self, input_ids: Tensor) -> list[Tensor]:
        return attention_maps(self.model, input_ids)


class _EncoderMaps(Entry):
    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        encoder = cast(Encoder, self.model)
        return attention_maps(encoder, as_input(encoder, inputs), lengths)


class _EncoderDecoderMaps(Entry):
    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, target_ids: Tensor | None = None
    ) -> list[Tensor]:
        model = cast(EncoderDecoder, self.model)
        return attention_maps(model, as_input(model.encoder, inputs), lengths, target_ids)


class _ImageDecoderMaps(Entry):
    def forward(self, pixels: Tensor, target_ids: Tensor) -> list[Tensor]:
        model = cast(EncoderDecoder, self.model)
        return attention_maps(model, as_input(model.encoder, pixels), None, target_ids)


def trace_attention_maps(config: ModelConfig, *, dtype: torch.dtype) -> ir.Model:
    """Trace the graph whose outputs are the maps of attention.

    Args:
        config: what to trace.
        dtype: of weights and activations; the maps are float32 in any case.
    """
    match config:
        case EncoderConfig():
            entry: type[Entry] = _EncoderMaps
        case EncoderDecoderConfig():
            images = isinstance(config.encoder.input, PatchInput)
            entry = _ImageDecoderMaps if images else _EncoderDecoderMaps
        case _:
            entry = _DecoderMaps
    return trace(config, dtype, entry, lambda: _signature(config))


def _signature(config: ModelConfig) -> Signature:
    ids = torch.zeros(2, 3, dtype=torch.int64)
    match config:
        case EncoderConfig():
            arguments, axes = source_example(config, "batch", "tokens")
            inputs = source_inputs(config)
        case EncoderDecoderConfig(encoder=encoder):
            arguments, axes = source_example(encoder, "batch", "source")
            arguments, axes = (*arguments, ids), (*axes, {0: "batch", 1: "sequence"})
            inputs = (*source_inputs(encoder), "target_ids")
        case _:
            # One text: there are no lengths to tell padding from it.
            arguments, axes = (ids[:1],), ({1: "sequence"},)
            inputs = ("input_ids",)
    return Signature(arguments=arguments, axes=axes, inputs=inputs, outputs=map_names(config))
