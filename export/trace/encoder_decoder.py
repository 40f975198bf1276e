"""An encoder-decoder as two graphs: a source to keys and values, and a step that reads them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.trace.decoder import layers, make_step, step_example
from ortolan.export.trace.encoder import as_input, source_example, source_inputs
from ortolan.export.trace.program import Entry, Signature, trace
from ortolan.modeling import EncoderDecoderModel
from ortolan.modeling.config import AttentionConfig, DecoderConfig, EncoderDecoderConfig
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
    """Sources to the keys and values that the decoder attends to."""

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> list[LayerCache]:
        model = cast(EncoderDecoderModel, self.model)
        return model.cross(model.encode(as_input(model.encoder, inputs), lengths))


class _TargetGraph(Entry):
    """A decoder's step after its sources, each of which has as many rows as any other."""

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
        past = layers(model.config.decoder, cache)
        step = make_step(model.config.decoder, seqlens_k, total, past)
        if is_one(input_ids.shape[1]):
            for each in (source_lengths, *(key for key, _ in cross)):
                torch._check(each.shape[0] == input_ids.shape[0])  # type: ignore[no-untyped-call]
        source = CrossCache([LayerCache(*each) for each in cross], source_lengths)
        logits, present = model.step(input_ids, step, past, source, logit_positions)
        return logits.float(), present


def trace_source_encoder(config: EncoderDecoderConfig, *, dtype: torch.dtype) -> ir.Model:
    """Trace the part that runs once for a source; outputs are in `dtype`."""

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
    """Trace a step of the decoder; cache and cross states are in `dtype`, logits in float32.

    Args:
        config: what to trace.
        dtype: of weights, activations, cache and cross states.
        sequence: new tokens of a step, if their number is fixed; then a source has one row.
    """

    def signature(config: EncoderDecoderConfig) -> Signature:
        decoder = config.decoder
        # Else twice the sources, so that no size is mistaken for another.
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
    config: DecoderConfig, dtype: torch.dtype, sources: int
) -> list[tuple[Tensor, Tensor]]:
    tokens = 5
    made = []
    for block in config.blocks:
        if block.cross_attention is None:
            raise TypeError("expected a decoder with cross-attention")
        heads, keys, values = (
            block.cross_attention.num_kv_heads,
            block.cross_attention.head_dim,
            block.cross_attention.value_width,
        )
        made.append(
            (
                torch.zeros(sources, heads, tokens, keys, dtype=dtype),
                torch.zeros(sources, heads, tokens, values, dtype=dtype),
            )
        )
    return made


def source_states(decoder: DecoderConfig, dtype: StateType) -> Iterator[State]:
    """Keys and values of a source, two a layer."""
    names = state_names(CROSS, len(decoder.blocks))
    shapes = _shapes(b.cross_attention for b in decoder.blocks if b.cross_attention)
    for name, (heads, width) in zip(names, shapes, strict=True):
        yield State(
            name=name,
            input=name,
            output=name,
            shape=("batch", heads, "source", width),
            dtype=dtype,
            update="source",
        )


def _shapes(attentions: Iterable[AttentionConfig]) -> Iterator[tuple[int, int]]:
    """Heads and width of the keys, then of the values, of each layer."""
    for attention in attentions:
        yield attention.num_kv_heads, attention.head_dim
        yield attention.num_kv_heads, attention.value_width
