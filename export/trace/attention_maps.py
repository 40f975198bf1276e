"""Graphs that return attention maps: what each token attends to, for whole sequences.

A recurrent network's maps show the past states that it reads, or the slots of its memory.

Shape letters: B batch, S tokens, K heads, N slots.
"""

from collections.abc import Iterator, Mapping
from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ortolan.export.trace.encoder import source_inputs, source_of
from ortolan.export.trace.program import (
    Entry,
    Feeds,
    GraphInput,
    Signature,
    model_in,
    trace,
    trace_entry,
)
from ortolan.export.trace.sides import Sides, sides_of
from ortolan.modeling import EncoderModel
from ortolan.modeling.config import (
    AttentionConfig,
    ModelConfig,
    RecurrentConfig,
    StackConfig,
)
from ortolan.modeling.layers.cache import StepLengths
from ortolan.modeling.layers.memory import MemoryState
from ortolan.modeling.models.attention_maps import attention_maps
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.recurrent import RecurrentModel
from ortolan.modeling.state import CachedState
from ortolan.runtime.bundle.interface import PRESENT, TARGET_IDS
from ortolan.runtime.bundle.source import IDS, LENGTHS


def map_names(sides: Sides) -> tuple[str, ...]:
    """Names of the attention maps, in the order of the layers."""
    kinds = ("self", "cross") if sides.encoder else ("self",)
    return (
        *(f"encoder.{i}.self" for i in _attending(sides.encoder)),
        *(f"decoder.{i}.{kind}" for i in _attending(sides.decoder) for kind in kinds),
    )


def _attending(side: StackConfig | None) -> Iterator[int]:
    """The layers that have attention."""
    for number, block in enumerate(side.blocks if side else ()):
        if isinstance(block.mixer, AttentionConfig):
            yield number


class _Maps(Entry):
    """From whole sources and targets to maps."""

    def forward(self, feeds: Feeds) -> list[Tensor]:
        model = cast(TransformerModel, self.model)
        encoder = cast(EncoderModel, getattr(model, "encoder", model))
        inputs = source_of(encoder, feeds)
        return attention_maps(model, inputs, feeds.get(LENGTHS), feeds.get(TARGET_IDS))


def trace_attention_maps(config: ModelConfig, *, dtype: torch.dtype) -> ir.Model:
    """Trace the attention maps of a model.

    Args:
        config: the model.
        dtype: of weights and activations; maps are always float32.
    """
    return trace(config, dtype, _Maps, _signature)


def _signature(config: ModelConfig) -> Signature:
    sides = sides_of(config)
    inputs = list[GraphInput]()
    if sides.encoder is not None:
        tokens = "tokens" if sides.decoder is None else "source"
        inputs += source_inputs(sides.encoder, "batch", tokens)
    if sides.decoder is not None:
        # Without an encoder, a single sequence: there are no lengths to tell padding by.
        rows, axis, name = (2, {0: "batch"}, TARGET_IDS) if inputs else (1, {}, IDS)
        ids = torch.zeros(rows, 3, dtype=torch.int64)
        inputs.append(GraphInput(name, ids, {**axis, 1: "sequence"}))
    return Signature(inputs, map_names(sides))


def recurrent_map_names(config: RecurrentConfig) -> tuple[str, ...]:
    """Names of the maps of attention, or of the heads of a memory, if there are any."""
    if config.attention_size is not None:
        return ("decoder.0.self",)
    return () if config.memory is None else ("decoder.0.read", "decoder.0.write")


def trace_recurrent_maps(
    config: RecurrentConfig, kept: Mapping[str, tuple[int, ...]], *, dtype: torch.dtype
) -> ir.Model:
    """Trace the maps of a recurrent network.

    Attention is traced for whole sequences, a memory for one token and the states that it carries.

    Args:
        config: with attention or with a memory.
        kept: shapes of its states for one row, by name.
        dtype: of weights and activations; maps are always float32.
    """
    with FakeTensorMode():
        model = model_in(config, dtype)
        if config.attention_size is not None:
            ids = GraphInput(IDS, torch.zeros(1, 3, dtype=torch.int64), {1: "sequence"})
            whole = Signature([ids], recurrent_map_names(config))
            return trace_entry(_Maps(model), whole, model.tied)
        io = Signature(
            [
                GraphInput(IDS, torch.zeros(1, 1, dtype=torch.int64)),
                *(
                    GraphInput(f"past.{name}", torch.zeros(1, *shape, dtype=dtype))
                    for name, shape in kept.items()
                ),
            ],
            (*recurrent_map_names(config), *(f"{PRESENT}.{name}" for name in kept)),
        )
        return trace_entry(_MemoryMaps(model), io, model.tied)


class _MemoryMaps(Entry):
    """From one token and states to where the heads look, `(B, K, 1, N)`, and the next states."""

    def forward(self, feeds: Feeds) -> tuple[Tensor, Tensor, list[Tensor]]:
        ids, *states = feeds.values()
        names = [name.removeprefix("past.") for name in feeds][1:]
        model, recorded = cast(RecurrentModel, self.model), list[Tensor]()
        memory = cast(nn.Module, model.memory)

        def record(_: nn.Module, __: object, result: tuple[Tensor, MemoryState]) -> None:
            recorded.append(result[1].weights[:, :, None].float())

        state = CachedState(StepLengths.first(1), {}, dict(zip(names, states, strict=True)))
        hook = memory.register_forward_hook(record)
        try:
            model(ids, state)
        finally:
            hook.remove()
        reading = 0 if model.config.memory is None else model.config.memory.read_heads
        (weights,) = recorded
        return weights[:, :reading], weights[:, reading:], [state.kept[name] for name in names]
