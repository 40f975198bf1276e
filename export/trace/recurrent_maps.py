"""What a recurrent network looks at, as a graph: past states, or the slots of a memory.

Shape letters: B batch, S tokens, K heads, N slots.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ortolan.export.trace.program import Entry, Signature, model_in, trace_entry
from ortolan.modeling.config import RecurrentConfig
from ortolan.modeling.layers.cache import StepLengths
from ortolan.modeling.layers.memory import MemoryState
from ortolan.modeling.models.attention_maps import attention_maps
from ortolan.modeling.models.recurrent import RecurrentModel
from ortolan.modeling.state import CachedState
from ortolan.runtime.bundle.interface import IDS, PRESENT


def map_names(config: RecurrentConfig) -> tuple[str, ...]:
    """Names of what can be shown: of attention, or of the heads of a memory; or nothing."""
    if config.attention is not None:
        return ("decoder.0.self",)
    return () if config.memory is None else ("decoder.0.read", "decoder.0.write")


def trace_recurrent_maps(
    config: RecurrentConfig, kept: Mapping[str, tuple[int, ...]], *, dtype: torch.dtype
) -> ir.Model:
    """Trace the maps of whole texts; of a memory those of one token, which the graph carries on.

    Args:
        config: with attention or with a memory.
        kept: shapes of what it keeps for one text, by name.
        dtype: of weights and activations; maps are float32 in any case.
    """
    with FakeTensorMode():
        model = model_in(config, dtype)
        if config.attention is not None:
            ids = torch.zeros(1, 3, dtype=torch.int64)
            entry: Entry = _AttentionMaps(model)
            whole = Signature(
                arguments=(ids,), axes=({1: "sequence"},), inputs=(IDS,), outputs=map_names(config)
            )
            return trace_entry(entry, whole, model.tied)
        memory = [torch.zeros(1, *shape, dtype=dtype) for shape in kept.values()]
        io = Signature(
            arguments=(torch.zeros(1, 1, dtype=torch.int64), memory),
            axes=({}, [{} for _ in memory]),
            inputs=(IDS, *(f"past.{name}" for name in kept)),
            outputs=(*map_names(config), *(f"{PRESENT}.{name}" for name in kept)),
        )
        return trace_entry(_MemoryMaps(model, list(kept)), io, model.tied)


class _AttentionMaps(Entry):
    def forward(self, input_ids: Tensor) -> list[Tensor]:
        return attention_maps(cast(RecurrentModel, self.model), input_ids)


class _MemoryMaps(Entry):
    """Where the heads look after one token, `(B, K, 1, N)`, and what is carried on."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__(model)
        self.names = names

    def forward(
        self, input_ids: Tensor, states: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        model, weights = cast(RecurrentModel, self.model), list[Tensor]()
        memory = cast(nn.Module, model.memory)

        def record(_: nn.Module, __: object, result: tuple[Tensor, MemoryState]) -> None:
            weights.append(result[1].weights[:, :, None].float())

        state = CachedState(StepLengths.first(1), {}, dict(zip(self.names, states, strict=True)))
        hook = memory.register_forward_hook(record)
        try:
            model(input_ids, state)
        finally:
            hook.remove()
        reading = 0 if model.config.memory is None else model.config.memory.read_heads
        (found,) = weights
        return found[:, :reading], found[:, reading:], [state.kept[name] for name in self.names]
