"""Traces an encoder-decoder: from sources to keys and values, and a step that reads them."""

from collections.abc import Iterator
from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.trace.decoder import cache_inputs, cache_names, step_inputs, step_of
from ortolan.export.trace.encoder import source_inputs, source_of
from ortolan.export.trace.program import Entry, Feeds, GraphInput, Signature, trace
from ortolan.modeling import EncoderDecoderModel
from ortolan.modeling.config import DecoderConfig, EncoderDecoderConfig
from ortolan.modeling.layers.cache import CrossCache, LayerCache, Memory
from ortolan.modeling.layers.sizes import is_one
from ortolan.runtime.bundle.interface import (
    CROSS,
    LOGIT_POSITIONS,
    LOGITS,
    PRESENT,
    SOURCE_LENGTHS,
    state_names,
)
from ortolan.runtime.bundle.manifest import State, StateType
from ortolan.runtime.bundle.source import IDS, LENGTHS


class _SourceGraph(Entry):
    """From sources to the keys and values that the decoder attends to."""

    def forward(self, feeds: Feeds) -> list[LayerCache]:
        model = cast(EncoderDecoderModel, self.model)
        return model.cross(model.encode(source_of(model.encoder, feeds), feeds.get(LENGTHS)))


class _TargetGraph(Entry):
    """A step of the decoder. All sources have equally many rows."""

    def forward(self, feeds: Feeds) -> tuple[Tensor, list[Memory]]:
        model = cast(EncoderDecoderModel, self.model)
        ids, lengths = feeds[IDS], feeds[SOURCE_LENGTHS]
        past, step = step_of(model.config.decoder, feeds)
        cross = [feeds[name] for name in state_names(CROSS, len(past))]
        if is_one(ids.shape[1]):
            for tensor in (lengths, *cross[::2]):
                torch._check(tensor.shape[0] == ids.shape[0])  # type: ignore[no-untyped-call]
        layers = [LayerCache(*layer) for layer in zip(cross[::2], cross[1::2], strict=True)]
        source = CrossCache(layers, lengths)
        logits, present = model.step(ids, step, past, source, feeds[LOGIT_POSITIONS])
        return logits.float(), present


def trace_source_encoder(config: EncoderDecoderConfig, *, dtype: torch.dtype) -> ir.Model:
    """Trace the part that runs once for each source; its outputs are in `dtype`."""

    def signature(config: EncoderDecoderConfig) -> Signature:
        names = state_names(CROSS, len(config.decoder.blocks))
        return Signature(source_inputs(config.encoder, "sources", "source"), names)

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
        states = {0: axis, 2: "source"}
        names = state_names(CROSS, len(decoder.blocks))
        return Signature(
            [
                *step_inputs(sequence, batch=6),
                GraphInput(SOURCE_LENGTHS, torch.zeros(sources, dtype=torch.int32), {0: axis}),
                *cache_inputs(decoder, dtype, batch=6),
                # for 5 tokens of each source
                *(
                    GraphInput(name, torch.zeros(sources, heads, 5, width, dtype=dtype), states)
                    for name, (heads, width) in zip(names, _cross_shapes(decoder), strict=True)
                ),
            ],
            [LOGITS, *cache_names(PRESENT, decoder)],
        )

    return trace(config, dtype, _TargetGraph, signature)


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
