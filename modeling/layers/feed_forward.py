"""The position-wise half of a block."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import Activation, FeedForwardConfig

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}


class MLP(nn.Module):
    """down(act(up(x))), or down(act(middle(act(up(x))))), `(..., E)` to `(..., E)`."""

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        hidden = config.intermediate_size
        self.up = nn.Linear(width, hidden, bias=config.bias)
        self.middle: nn.Linear | None = (
            nn.Linear(hidden, hidden, bias=config.bias) if config.hidden_layers == 2 else None
        )
        self.down = nn.Linear(hidden, width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., E)` to `(..., E)`."""
        x = self.activation(self.up(x))
        if self.middle is not None:
            x = self.activation(self.middle(x))
        out: Tensor = self.down(x)
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
