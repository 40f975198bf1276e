"""Where the heads of a Neural Turing Machine look, token by token."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ortolan.modeling.errors import ConfigError
from ortolan.modeling.layers.memory import MemoryState
from ortolan.modeling.models.recurrent import RecurrentModel


class Addressing(NamedTuple):
    """How much each head looks at each of N slots after each of S tokens.

    Attributes:
        read: `(B, heads, S, N)`.
        write: `(B, heads, S, N)`.
    """

    read: Tensor
    write: Tensor


@torch.no_grad()
def addressing(model: RecurrentModel, input_ids: Tensor) -> Addressing:
    """The weights of all heads while whole texts are read, int64 `(B, S)`.

    Raises:
        ConfigError: the model has no memory.
    """
    if model.memory is None:
        raise ConfigError(
            "addressing: expected a model with a memory, got one without. Give a network whose "
            "config has memory_slots."
        )
    weights: list[Tensor] = []

    def record(_: nn.Module, __: object, result: tuple[Tensor, MemoryState]) -> None:
        weights.append(result[1].weights)

    hook = model.memory.register_forward_hook(record)
    try:
        model(input_ids)
    finally:
        hook.remove()
    reading = model.memory.config.read_heads
    weights_BKSN = torch.stack(weights, 2)
    return Addressing(weights_BKSN[:, :reading], weights_BKSN[:, reading:])
