"""Traces the step of a decoder."""

from collections.abc import Iterator
from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.trace.program import Entry, Feeds, GraphInput, Signature, trace
from ortolan.modeling import DecoderConfig, DecoderModel
from ortolan.modeling.config import AttentionConfig, RelativePositions
from ortolan.modeling.config.positions import AXES
from ortolan.modeling.layers.cache import (
    Memory,
    StepLengths,
    as_memory,
    capacity_of,
    empty_cache,
)
from ortolan.modeling.layers.embeddings import Features
from ortolan.modeling.layers.nodes import fits_kernel
from ortolan.modeling.layers.ops import select
from ortolan.runtime.bundle.interface import (
    FEATURE_ROWS,
    FEATURES,
    HIDDEN,
    LOGIT_POSITIONS,
    LOGITS,
    PAST,
    PRESENT,
    PREVIOUS,
    SEQLENS,
    TOTAL,
)
from ortolan.runtime.bundle.manifest import State, StateType
from ortolan.runtime.bundle.source import IDS, POSITIONS


class _DecoderGraph(Entry):
    """A decoder's step with the inputs and outputs of the graph contract."""

    def forward(self, feeds: Feeds) -> tuple[object, ...]:
        decoder = cast(DecoderModel, self.model)
        ids, rows = feeds[IDS], feeds[LOGIT_POSITIONS]
        past, step = step_of(decoder.config, feeds)
        if decoder.config.gives_states:
            previous = feeds.get(PREVIOUS)
            states, present = decoder.step_states(ids, step, past, previous_BSE=previous)
            return decoder.project(select(states, rows)).float(), states.float(), present
        features = None
        if FEATURES in feeds:
            features = Features(feeds[FEATURES], feeds[FEATURE_ROWS], feeds.get(POSITIONS))
        logits, present = decoder.step(ids, step, past, rows, features=features)
        return logits.float(), present


def trace_decoder(
    config: DecoderConfig, *, dtype: torch.dtype, sequence: int | None = None
) -> ir.Model:
    """Trace one step of a decoder.

    Args:
        config: the model.
        dtype: of weights, activations and cache; logits are always float32.
        sequence: number of new tokens, if it is fixed.
    """

    def signature(config: DecoderConfig) -> Signature:
        inputs = step_inputs(sequence)
        ids = inputs[0]

        def of_each(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> GraphInput:
            return GraphInput(name, torch.zeros(*ids.example.shape, *shape, dtype=dtype), ids.axes)

        if config.feature_token_id is not None:
            vectors = torch.zeros(5, config.feature_width)
            inputs += [
                GraphInput(FEATURES, vectors, {0: "features"}),
                of_each(FEATURE_ROWS, dtype=torch.int64),
            ]
            if config.has_axes:
                inputs.append(of_each(POSITIONS, AXES, dtype=torch.int64))
        if config.state_norm is not None:
            inputs.append(of_each(PREVIOUS, config.hidden_size))
        hidden = [HIDDEN] if config.gives_states else []
        return Signature(
            [*inputs, *cache_inputs(config, dtype)],
            [LOGITS, *hidden, *cache_names(PRESENT, config)],
        )

    return trace(config, dtype, _DecoderGraph, signature)


def step_of(config: DecoderConfig, feeds: Feeds) -> tuple[list[Memory], StepLengths]:
    """The memory of every layer, and the lengths of a step.

    The longest row is a number if a layer needs it.
    """
    past = [
        as_memory(block.mixer, [feeds[f"{PAST}.{layer}.{s.name}"] for s in block.mixer.states])
        for layer, block in enumerate(config.blocks)
    ]
    lengths, total = feeds[SEQLENS], feeds[TOTAL]
    seen = seen_of(total, capacity_of(past)) if _measures_distances(config) else None
    return past, StepLengths(lengths, total, seen)


def seen_of(total: Tensor, capacity: int) -> int:
    """The longest row after a step, as a symbol of the trace."""
    seen = total.item()
    # Not 1: torch.export would ask whether it is. A graph with this symbol also computes 1.
    torch._check(seen >= 2)  # type: ignore[no-untyped-call]
    torch._check(seen <= capacity)  # type: ignore[no-untyped-call]
    return cast(int, seen)


def _measures_distances(config: DecoderConfig) -> bool:
    """Whether a layer computes with distances between tokens, or is not one fused node."""
    return isinstance(config.positions, RelativePositions) or not all(
        _fits(config, attention) for attention in config.attentions
    )


def _fits(config: DecoderConfig, attention: AttentionConfig) -> bool:
    rotary = config.rotary_of(attention)
    # angles on several axes turn queries and keys before the kernel
    rotated = rotary.dim if rotary and not rotary.axes else 0
    return fits_kernel(attention, rotated=rotated)


def step_inputs(sequence: int | None, *, batch: int = 2) -> list[GraphInput]:
    """The inputs of a step before its states."""
    return [
        GraphInput(
            IDS,
            torch.zeros(batch, sequence or 4, dtype=torch.int64),
            {0: "batch"} if sequence else {0: "batch", 1: "sequence"},
        ),
        GraphInput(SEQLENS, torch.zeros(batch, dtype=torch.int32), {0: "batch"}),
        GraphInput(TOTAL, torch.zeros((), dtype=torch.int32)),
        GraphInput(
            LOGIT_POSITIONS,
            torch.zeros(batch, sequence or 3, dtype=torch.int64),
            {0: "batch"} if sequence else {0: "batch", 1: "rows"},
        ),
    ]


def cache_inputs(
    config: DecoderConfig, dtype: torch.dtype, *, batch: int = 2
) -> Iterator[GraphInput]:
    """The states of all layers before a step."""
    varying = {"append": {0: "batch", 2: "capacity"}, "replace": {0: "batch"}}
    for number, layer in enumerate(empty_cache(config, batch=batch, capacity=8)):
        for state, tensor in zip(config.blocks[number].mixer.states, layer, strict=True):
            name = f"{PAST}.{number}.{state.name}"
            yield GraphInput(name, tensor.to(dtype), varying[state.update])


def cache_names(prefix: str, decoder: DecoderConfig) -> list[str]:
    """Names of the states of all layers, in the order of a graph."""
    return [
        f"{prefix}.{layer}.{state.name}"
        for layer, block in enumerate(decoder.blocks)
        for state in block.mixer.states
    ]


def cache_states(decoder: DecoderConfig, dtype: StateType) -> Iterator[State]:
    """The states of all layers, for the manifest."""
    for layer, block in enumerate(decoder.blocks):
        for state in block.mixer.states:
            name = f"{layer}.{state.name}"
            yield State(
                name=name,
                input=f"{PAST}.{name}",
                output=f"{PRESENT}.{name}",
                shape=("batch", *state.shape),
                dtype=dtype,
                update=state.update,
            )
