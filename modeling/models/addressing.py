"""Attention of a Neural Turing Machine's heads to its memory, token by token."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ortolan.modeling.errors import ConfigError
from ortolan.modeling.layers.memory import MemoryState
from ortolan.modeling.models.recurrent import RecurrentModel


class Addressing(NamedTuple):
    """Attention of every head to N slots after each of S tokens.

    Attributes:
        read: `(B, heads, S, N)`.
        write: `(B, heads, S, N)`.
    """

    read: Tensor
    write: Tensor


@torch.no_grad()
def addressing(model: RecurrentModel, input_ids: Tensor) -> Addressing:
    """Attention of all heads while the model reads int64 `(B, S)`."""
    if model.memory is None:
        raise ConfigError("This model has no memory. Pass a network whose config has memory_slots.")
    weights: list[Tensor] = []

    def record(_: nn.Module, __: object, result: tuple[Tensor, MemoryState]) -> None:
        weights.append(result[1].weights)

    hook = model.memory.register_forward_hook(record)
    try:
        model(input_ids)
    finally:
        hook.remove()
    read_heads = model.memory.config.read_heads
    weights_BKSN = torch.stack(weights, 2)
    return Addressing(weights_BKSN[:, :read_heads], weights_BKSN[:, read_heads:])
