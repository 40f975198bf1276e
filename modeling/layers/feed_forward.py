"""The position-wise half of a block."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import Activation, FeedForwardConfig
from ortolan.modeling.layers.norms import norm


def relu2(x: Tensor) -> Tensor:
    """The square of the positive part."""
    positive = F.relu(x)
    return positive * positive  # a square would be a Pow, which is not everywhere


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


class XIELU(nn.Module):
    """A parabola on the right, an exponential less a line on the left (Huang and Schlag 2024).

    Attributes:
        right: `(1,)`; its softplus is how much the parabola bends.
        left: `(1,)`; its softplus, and the slope besides, is how much the exponential does.
    """

    SLOPE, EPSILON = 0.5, -1e-6

    def __init__(self) -> None:
        super().__init__()
        self.right = nn.Parameter(torch.zeros(1))
        self.left = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        right, left = F.softplus(self.right), self.SLOPE + F.softplus(self.left)
        below = torch.expm1(x.clamp(max=self.EPSILON)) - x
        return self.SLOPE * x + torch.where(x > 0, right * x.square(), left * below)


class MLP(nn.Module):
    """down(act(up(x))), or down(act(middle(act(up(x))))), `(..., E)` to `(..., E)`."""

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__()
        self.activation = activation(config)
        hidden = config.intermediate_size
        self.up = nn.Linear(width, hidden, bias=config.bias)
        self.middle: nn.Linear | None = (
            nn.Linear(hidden, hidden, bias=config.bias) if config.hidden_layers == 2 else None
        )
        self.inner_norm = inner_norm(config)
        self.down = down(config, width)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., E)` to `(..., E)`."""
        x = self.activation(self.up(x))
        if self.middle is not None:
            x = self.activation(self.middle(x))
        out: Tensor = self.down(self.inner_norm(x))
        return out


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), `(..., E)` to `(..., E)` (Shazeer 2020, "GLU Variants")."""

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__()
        self.activation = activation(config)
        # Two matrices, not one packed: a wide result would have to be cut apart again.
        self.gate = nn.Linear(width, config.intermediate_size, bias=config.bias)
        self.up = nn.Linear(width, config.intermediate_size, bias=config.bias)
        self.inner_norm = inner_norm(config)
        self.down = down(config, width)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., E)` to `(..., E)`."""
        hidden = self.activation(self.gate(x)) * self.up(x)
        out: Tensor = self.down(self.inner_norm(hidden))
        return out


def activation(config: FeedForwardConfig) -> Callable[[Tensor], Tensor]:
    """What bends the hidden channels."""
    return XIELU() if config.activation == "xielu" else ACTIVATIONS[config.activation]


def inner_norm(config: FeedForwardConfig) -> nn.Module:
    """The norm of what enters the last product, if there is one."""
    return norm(config.inner_norm, config.intermediate_size) if config.inner_norm else nn.Identity()


def down(config: FeedForwardConfig, width: int) -> nn.Linear:
    """The last product."""
    bias = config.bias if config.down_bias is None else config.down_bias
    return nn.Linear(config.intermediate_size, width, bias=bias)


def feed_forward(config: FeedForwardConfig, width: int) -> nn.Module:
    """The feed-forward layer that `config` names."""
    return GatedMLP(config, width) if config.kind == "gated" else MLP(config, width)
