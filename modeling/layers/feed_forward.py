"""Feed-forward layers."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import Activation, FeedForwardConfig


def relu2(x: Tensor) -> Tensor:
    """`relu(x) ** 2`."""
    positive = F.relu(x)
    return positive * positive  # `** 2` becomes Pow, which some runtimes lack


def quick_gelu(x: Tensor) -> Tensor:
    """`x * sigmoid(1.702 x)`."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": relu2,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class MLP(nn.Module):
    """`down(act(up(x)))`."""

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.up = nn.Linear(width, config.intermediate_size, bias=config.bias)
        self.down = down(config, width)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., E)` to `(..., E)`."""
        out: Tensor = self.down(self.activation(self.up(x)))
        return out


class GatedMLP(nn.Module):
    """`down(act(gate(x)) * up(x))` (Shazeer 2020, "GLU Variants")."""

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        # Two matrices rather than one: slicing a wide result costs more than a second product.
        self.gate = nn.Linear(width, config.intermediate_size, bias=config.bias)
        self.up = nn.Linear(width, config.intermediate_size, bias=config.bias)
        self.down = down(config, width)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., E)` to `(..., E)`."""
        out: Tensor = self.down(self.activation(self.gate(x)) * self.up(x))
        return out


def down(config: FeedForwardConfig, width: int) -> nn.Linear:
    """The last projection."""
    bias = config.bias if config.down_bias is None else config.down_bias
    return nn.Linear(config.intermediate_size, width, bias=bias)


def feed_forward(config: FeedForwardConfig, width: int) -> nn.Module:
    """The feed-forward layer of a config."""
    return GatedMLP(config, width) if config.kind == "gated" else MLP(config, width)
