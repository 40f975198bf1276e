"""The position-wise half of a block."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import Activation, FeedForwardConfig

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class MLP(nn.Module):
    """down(act(up(x))), `(..., E)` to `(..., E)`."""

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.up = nn.Linear(width, config.intermediate_size, bias=config.bias)
        self.down = nn.Linear(config.intermediate_size, width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., E)` to `(..., E)`."""
        out: Tensor = self.down(self.activation(self.up(x)))
        return out


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), `(..., E)` to `(..., E)` (Shazeer 2020, "GLU Variants")."""

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        # Two matrices, not one packed: a wide result would have to be cut apart again.
        self.gate = nn.Linear(width, config.intermediate_size, bias=config.bias)
        self.up = nn.Linear(width, config.intermediate_size, bias=config.bias)
        self.down = nn.Linear(config.intermediate_size, width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., E)` to `(..., E)`."""
        out: Tensor = self.down(self.activation(self.gate(x)) * self.up(x))
        return out


def feed_forward(config: FeedForwardConfig, width: int) -> nn.Module:
    """The feed-forward layer that `config` names."""
    return GatedMLP(config, width) if config.kind == "gated" else MLP(config, width)
