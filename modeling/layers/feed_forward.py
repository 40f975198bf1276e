"""Feed-forward layers."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import Activation, FeedForwardConfig
from ortolan.modeling.layers.norms import norm


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


class XIELU(nn.Module):
    """A parabola for x > 0, an exponential minus a line below (Huang and Schlag 2024).

    Attributes:
        right: `(1,)`; its softplus is the curvature of the parabola.
        left: `(1,)`; its softplus plus the slope is the weight of the exponential.
    """

    SLOPE, EPSILON = 0.5, -1e-6

    def __init__(self) -> None:
        super().__init__()
        self.right = nn.Parameter(torch.zeros(1))
        self.left = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        right, left = F.softplus(self.right), self.SLOPE + F.softplus(self.left)
        below = torch.expm1(x.clamp(max=self.EPSILON)) - x
        return self.SLOPE * x + torch.where(x > 0, right * x.square(), left * below)


class MLP(nn.Module):
    """`down(act(up(x)))`."""

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__()
        self.activation = activation(config)
        self.up = nn.Linear(width, config.intermediate_size, bias=config.bias)
        self.inner_norm = inner_norm(config)
        self.down = down(config, width)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., E)` to `(..., E)`."""
        out: Tensor = self.down(self.inner_norm(self.activation(self.up(x))))
        return out


class GatedMLP(nn.Module):
    """`down(act(gate(x)) * up(x))` (Shazeer 2020, "GLU Variants")."""

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__()
        self.activation = activation(config)
        # Two matrices rather than one: slicing a wide result costs more than a second product.
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
    """Activation of the hidden channels."""
    return XIELU() if config.activation == "xielu" else ACTIVATIONS[config.activation]


def inner_norm(config: FeedForwardConfig) -> nn.Module:
    """Norm before the last projection, if any."""
    return norm(config.inner_norm, config.intermediate_size) if config.inner_norm else nn.Identity()


def down(config: FeedForwardConfig, width: int) -> nn.Linear:
    """The last projection."""
    bias = config.bias if config.down_bias is None else config.down_bias
    return nn.Linear(config.intermediate_size, width, bias=bias)


def feed_forward(config: FeedForwardConfig, width: int) -> nn.Module:
    """The feed-forward layer of a config."""
    return GatedMLP(config, width) if config.kind == "gated" else MLP(config, width)
