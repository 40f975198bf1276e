"""Traces an encoder-decoder: from sources to keys and values, and a step that reads them."""

from collections.abc import Iterator, Sequence
from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.trace.decoder import make_step, memories, step_example
from ortolan.export.trace.encoder import as_input, source_example, source_inputs
from ortolan.export.trace.program import Entry, Signature, trace
from ortolan.modeling import EncoderDecoderModel
from ortolan.modeling.config import DecoderConfig, EncoderDecoderConfig
from ortolan.modeling.layers.cache import CrossCache, LayerCache, Memory
from ortolan.modeling.layers.sizes import is_one
from ortolan.runtime.bundle.interface import (
    CROSS,
    LOGITS,
    PAST,
    PRESENT,
    SOURCE_LENGTHS,
    STEP_INPUTS,
    state_names,
)
from ortolan.runtime.bundle.manifest import State, StateType


class _SourceGraph(Entry):
    """From sources to the keys and values that the decoder attends to."""

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> list[LayerCache]:
        model = cast(EncoderDecoderModel, self.model)
        return model.cross(model.encode(as_input(model.encoder, inputs), lengths))


class _TargetGraph(Entry):
    """A step of the decoder. All sources have equally many rows."""

    def forward(
        self,
        input_ids: Tensor,
        seqlens_k: Tensor,
        total: Tensor,
        logit_positions: Tensor,
        source_lengths: Tensor,
        cache: Sequence[Sequence[Tensor]],
        cross: Sequence[Sequence[Tensor]],
    ) -> tuple[Tensor, list[Memory]]:
        model = cast(EncoderDecoderModel, self.model)
        past = memories(model.config.decoder, cache)
        step = make_step(model.config.decoder, seqlens_k, total, past)
        if is_one(input_ids.shape[1]):
            for tensor in (source_lengths, *(key for key, _ in cross)):
                torch._check(tensor.shape[0] == input_ids.shape[0])  # type: ignore[no-untyped-call]
        source = CrossCache([LayerCache(*layer) for layer in cross], source_lengths)
        logits, present = model.step(input_ids, step, past, source, logit_positions)
        return logits.float(), present


def trace_source_encoder(config: EncoderDecoderConfig, *, dtype: torch.dtype) -> ir.Model:
    """Trace the part that runs once for each source; its outputs are in `dtype`."""

    def signature(config: EncoderDecoderConfig) -> Signature:
        arguments, axes = source_example(config.encoder, "sources", "source")
        return Signature(
            arguments=arguments,
            axes=axes,
            inputs=source_inputs(config.encoder),
            outputs=state_names(CROSS, len(config.decoder.blocks)),
        )

    return trace(config, dtype, _SourceGraph, signature)


def trace_target_decoder(
    config: EncoderDecoderConfig, *, dtype: torch.dtype, sequence: int | None = None
) -> ir.Model:
    """Trace a step of the decoder.

    Args:
        config: the model.
        dtype: of weights, activations, cache and cross states; logits are always float32.
        sequence: number of new tokens, if it is fixed; every source then has one row.
    """

    def signature(config: EncoderDecoderConfig) -> Signature:
        decoder = config.decoder
        # With 6 rows for 3 sources, no size can be mistaken for another.
        sources, axis = (3, "sources") if sequence is None else (6, "batch")
        step, axes = step_example(decoder, dtype, sequence, batch=6)
        cross = _cross_example(decoder, dtype, sources)
        states = {0: axis, 2: "source"}
        return Signature(
            arguments=(*step[:4], torch.zeros(sources, dtype=torch.int32), step[4], cross),
            axes=(*axes[:4], {0: axis}, axes[4], [(states, states) for _ in cross]),
            inputs=[
                *STEP_INPUTS,
                SOURCE_LENGTHS,
                *state_names(PAST, len(decoder.blocks)),
                *state_names(CROSS, len(decoder.blocks)),
            ],
            outputs=[LOGITS, *state_names(PRESENT, len(decoder.blocks))],
        )

    return trace(config, dtype, _TargetGraph, signature)


def _cross_example(
    decoder: DecoderConfig, dtype: torch.dtype, sources: int
) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer, for 5 tokens of each source."""
    states = [torch.zeros(sources, h, 5, width, dtype=dtype) for h, width in _cross_shapes(decoder)]
    return list(zip(states[::2], states[1::2], strict=True))


def source_states(decoder: DecoderConfig, dtype: StateType) -> Iterator[State]:
    """The keys and values of a source, for the manifest."""
    names = state_names(CROSS, len(decoder.blocks))
    for name, (heads, width) in zip(names, _cross_shapes(decoder), strict=True):
        yield State(
            name=name,
            input=name,
            output=name,
            shape=("batch", heads, "source", width),
            dtype=dtype,
            update="source",
        )


def _cross_shapes(decoder: DecoderConfig) -> Iterator[tuple[int, int]]:
    """Heads and width of each layer's keys, then of its values."""
    for block in decoder.blocks:
        if block.cross_attention is None:
            raise TypeError("expected a decoder with cross-attention")
        attention = block.cross_attention
        yield attention.num_kv_heads, attention.head_dim
        yield attention.num_kv_heads, attention.value_width
