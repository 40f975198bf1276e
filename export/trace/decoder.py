"""Traces the step of a decoder."""

from collections.abc import Iterator, Sequence
from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor

from ortolan.export.trace.program import Entry, Signature, trace
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
from ortolan.modeling.layers.lowering import fits_kernel
from ortolan.modeling.layers.ops import select
from ortolan.runtime.bundle.interface import (
    FEATURE_ROWS,
    FEATURES,
    HIDDEN,
    LOGITS,
    PAST,
    PRESENT,
    PREVIOUS,
    STEP_INPUTS,
)
from ortolan.runtime.bundle.manifest import State, StateType
from ortolan.runtime.bundle.source import POSITIONS


class _DecoderGraph(Entry):
    """A decoder's step with the inputs and outputs of the graph contract."""

    def forward(
        self,
        input_ids: Tensor,
        seqlens_k: Tensor,
        total: Tensor,
        logit_positions: Tensor,
        cache: Sequence[Sequence[Tensor]],
    ) -> tuple[Tensor, list[Memory]]:
        decoder = cast(DecoderModel, self.model)
        past = memories(decoder.config, cache)
        step = make_step(decoder.config, seqlens_k, total, past)
        logits, present = decoder.step(input_ids, step, past, logit_positions)
        return logits.float(), present


class _ReadingGraph(Entry):
    """The same step of a decoder that reads vectors of images."""

    def forward(
        self,
        input_ids: Tensor,
        seqlens_k: Tensor,
        total: Tensor,
        logit_positions: Tensor,
        vectors: Tensor,
        rows: Tensor,
        cache: Sequence[Sequence[Tensor]],
    ) -> tuple[Tensor, list[Memory]]:
        decoder = cast(DecoderModel, self.model)
        past = memories(decoder.config, cache)
        step = make_step(decoder.config, seqlens_k, total, past)
        features = Features(vectors, rows)
        logits, present = decoder.step(input_ids, step, past, logit_positions, features=features)
        return logits.float(), present


class _PlacingGraph(Entry):
    """The same step of a decoder whose tokens have positions on several axes."""

    def forward(
        self,
        input_ids: Tensor,
        seqlens_k: Tensor,
        total: Tensor,
        logit_positions: Tensor,
        vectors: Tensor,
        rows: Tensor,
        positions: Tensor,
        cache: Sequence[Sequence[Tensor]],
    ) -> tuple[Tensor, list[Memory]]:
        decoder = cast(DecoderModel, self.model)
        past = memories(decoder.config, cache)
        step = make_step(decoder.config, seqlens_k, total, past)
        features = Features(vectors, rows, positions)
        logits, present = decoder.step(input_ids, step, past, logit_positions, features=features)
        return logits.float(), present


class _HiddenGraph(Entry):
    """The same step of a decoder that also returns the state of every token."""

    def forward(
        self,
        input_ids: Tensor,
        seqlens_k: Tensor,
        total: Tensor,
        logit_positions: Tensor,
        cache: Sequence[Sequence[Tensor]],
    ) -> tuple[Tensor, Tensor, list[Memory]]:
        return self.step(input_ids, seqlens_k, total, logit_positions, None, cache)

    def step(
        self,
        input_ids: Tensor,
        seqlens_k: Tensor,
        total: Tensor,
        logit_positions: Tensor,
        previous_BSE: Tensor | None,
        cache: Sequence[Sequence[Tensor]],
    ) -> tuple[Tensor, Tensor, list[Memory]]:
        """The step, with states before the tokens for a head."""
        decoder = cast(DecoderModel, self.model)
        past = memories(decoder.config, cache)
        step = make_step(decoder.config, seqlens_k, total, past)
        states, present = decoder.step_states(input_ids, step, past, previous_BSE=previous_BSE)
        logits = decoder.project(select(states, logit_positions))
        return logits.float(), states.float(), present


class _HeadGraph(_HiddenGraph):
    """The same step of a head, which reads the state before each token."""

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        seqlens_k: Tensor,
        total: Tensor,
        logit_positions: Tensor,
        previous_BSE: Tensor,
        cache: Sequence[Sequence[Tensor]],
    ) -> tuple[Tensor, Tensor, list[Memory]]:
        return self.step(input_ids, seqlens_k, total, logit_positions, previous_BSE, cache)


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
        arguments, axes = step_example(config, dtype, sequence)
        inputs = [*STEP_INPUTS]
        if reads_images:
            vectors = torch.zeros(5, config.feature_width)
            rows = torch.zeros_like(cast(Tensor, arguments[0]))
            arguments = (*arguments[:-1], vectors, rows, arguments[-1])
            axes = (*axes[:-1], {0: "features"}, axes[0], axes[-1])
            inputs += [FEATURES, FEATURE_ROWS]
        if reads_images and config.has_axes:
            positions = torch.zeros(*cast(Tensor, arguments[0]).shape, AXES, dtype=torch.int64)
            arguments = (*arguments[:-1], positions, arguments[-1])
            axes = (*axes[:-1], axes[0], axes[-1])
            inputs += [POSITIONS]
        if is_head:
            ids = cast(Tensor, arguments[0])
            previous = torch.zeros(*ids.shape, config.hidden_size)
            arguments, axes = (
                (*arguments[:-1], previous, arguments[-1]),
                (*axes[:-1], axes[0], axes[-1]),
            )
            inputs += [PREVIOUS]
        hidden = [HIDDEN] if config.gives_states else []
        return Signature(
            arguments=arguments,
            axes=axes,
            inputs=[*inputs, *cache_names(PAST, config)],
            outputs=[LOGITS, *hidden, *cache_names(PRESENT, config)],
        )

    reads_images, is_head = config.feature_token_id is not None, config.state_norm is not None
    entry: type[Entry] = _ReadingGraph if reads_images else _DecoderGraph
    if reads_images and config.has_axes:
        entry = _PlacingGraph
    if config.gives_states:
        entry = _HeadGraph if is_head else _HiddenGraph
    return trace(config, dtype, entry, signature)


def memories(config: DecoderConfig, tensors: Sequence[Sequence[Tensor]]) -> list[Memory]:
    """The memory of every layer, from plain lists of tensors."""
    return [
        as_memory(block.mixer, layer) for block, layer in zip(config.blocks, tensors, strict=True)
    ]


def make_step(
    config: DecoderConfig, seqlens_k: Tensor, total: Tensor, cache: Sequence[Memory]
) -> StepLengths:
    """The lengths of a step, with the longest row as a number if a layer needs it."""
    if not _measures_distances(config):
        return StepLengths(seqlens_k, total)
    return StepLengths(seqlens_k, total, seen_of(total, capacity_of(cache)))


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
    return fits_kernel(attention, rotated=rotated, vectors=False)


def step_example(
    config: DecoderConfig, dtype: torch.dtype, sequence: int | None, *, batch: int = 2
) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Example inputs of a step, and the names of the axes that vary."""
    new_tokens, capacity = sequence or 4, 8
    cache = [
        tuple(tensor.to(dtype) for tensor in layer)
        for layer in empty_cache(config, batch=batch, capacity=capacity)
    ]
    arguments = (
        torch.zeros(batch, new_tokens, dtype=torch.int64),
        torch.zeros(batch, dtype=torch.int32),
        torch.zeros((), dtype=torch.int32),
        torch.zeros(batch, sequence or 3, dtype=torch.int64),
        cache,
    )
    varying = {"append": {0: "batch", 2: "capacity"}, "replace": {0: "batch"}}
    axes: tuple[object, ...] = (
        {0: "batch"} if sequence else {0: "batch", 1: "sequence"},
        {0: "batch"},
        {},
        {0: "batch"} if sequence else {0: "batch", 1: "rows"},
        [tuple(varying[state.update] for state in block.mixer.states) for block in config.blocks],
    )
    return arguments, axes


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
