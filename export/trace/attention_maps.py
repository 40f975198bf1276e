"""Graphs that return attention maps: what each token attends to, for whole sequences.

A recurrent network's maps show the past states that it reads, or the slots of its memory.

Shape letters: B batch, S tokens, K heads, N slots.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ortolan.export.trace.encoder import as_input, source_example, source_inputs
from ortolan.export.trace.program import Entry, Signature, model_in, trace, trace_entry
from ortolan.export.trace.sides import Sides, sides_of
from ortolan.modeling import EncoderDecoderModel, EncoderModel
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
from ortolan.runtime.bundle.source import IDS


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


class _MediaDecoderMaps(Entry):
    def forward(self, inputs: Tensor, target_ids: Tensor) -> list[Tensor]:
        model = cast(EncoderDecoderModel, self.model)
        return attention_maps(model, as_input(model.encoder, inputs), None, target_ids)


def trace_attention_maps(config: ModelConfig, *, dtype: torch.dtype) -> ir.Model:
    """Trace the attention maps of a model.

    Args:
        config: the model.
        dtype: of weights and activations; maps are always float32.
    """
    sides = sides_of(config)
    entry: type[Entry] = _DecoderMaps
    if sides.encoder is not None:
        entry = _EncoderDecoderMaps if sides.media is None else _MediaDecoderMaps
        entry = _EncoderMaps if sides.decoder is None else entry
    return trace(config, dtype, entry, _signature)


def _signature(config: ModelConfig) -> Signature:
    """From whole sources and targets to maps."""
    sides = sides_of(config)
    arguments: tuple[object, ...] = ()
    axes: tuple[object, ...] = ()
    inputs: tuple[str, ...] = ()
    if sides.encoder is not None:
        tokens = "tokens" if sides.decoder is None else "source"
        arguments, axes = source_example(sides.encoder, "batch", tokens)
        inputs = source_inputs(sides.encoder)
    if sides.decoder is not None:
        # Without an encoder, a single sequence: there are no lengths to tell padding by.
        rows, axis, name = (1, {}, IDS) if sides.encoder is None else (2, {0: "batch"}, TARGET_IDS)
        arguments = (*arguments, torch.zeros(rows, 3, dtype=torch.int64))
        axes = (*axes, {**axis, 1: "sequence"})
        inputs = (*inputs, name)
    return Signature(arguments=arguments, axes=axes, inputs=inputs, outputs=map_names(sides))


def recurrent_map_names(config: RecurrentConfig) -> tuple[str, ...]:
    """Names of the maps of attention, or of the heads of a memory, if there are any."""
    if config.attention is not None:
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
        if config.attention is not None:
            ids = torch.zeros(1, 3, dtype=torch.int64)
            entry: Entry = _AttentionMaps(model)
            whole = Signature(
                arguments=(ids,),
                axes=({1: "sequence"},),
                inputs=(IDS,),
                outputs=recurrent_map_names(config),
            )
            return trace_entry(entry, whole, model.tied)
        memory = [torch.zeros(1, *shape, dtype=dtype) for shape in kept.values()]
        io = Signature(
            arguments=(torch.zeros(1, 1, dtype=torch.int64), memory),
            axes=({}, [{} for _ in memory]),
            inputs=(IDS, *(f"past.{name}" for name in kept)),
            outputs=(*recurrent_map_names(config), *(f"{PRESENT}.{name}" for name in kept)),
        )
        return trace_entry(_MemoryMaps(model, list(kept)), io, model.tied)


class _AttentionMaps(Entry):
    def forward(self, input_ids: Tensor) -> list[Tensor]:
        return attention_maps(cast(RecurrentModel, self.model), input_ids)


class _MemoryMaps(Entry):
    """From one token and states to where the heads look, `(B, K, 1, N)`, and the next states."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__(model)
        self.names = names

    def forward(
        self, input_ids: Tensor, states: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        model, recorded = cast(RecurrentModel, self.model), list[Tensor]()
        memory = cast(nn.Module, model.memory)

        def record(_: nn.Module, __: object, result: tuple[Tensor, MemoryState]) -> None:
            recorded.append(result[1].weights[:, :, None].float())

        state = CachedState(StepLengths.first(1), {}, dict(zip(self.names, states, strict=True)))
        hook = memory.register_forward_hook(record)
        try:
            model(input_ids, state)
        finally:
            hook.remove()
        reading = 0 if model.config.memory is None else model.config.memory.read_heads
        (weights,) = recorded
        return weights[:, :reading], weights[:, reading:], [state.kept[name] for name in self.names]
