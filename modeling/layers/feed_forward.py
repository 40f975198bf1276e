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


class FeedForward(nn.Module):
    """`down(act(up(x)))`, or `down(act(gate(x)) * up(x))` (Shazeer 2020, "GLU Variants")."""

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__()
        inner, bias = config.intermediate_size, config.bias
        self.activation = ACTIVATIONS[config.activation]
        self.gate: nn.Linear | None = None
        if config.kind == "gated":
            # Two matrices rather than one: slicing a wide result costs more than a second product.
            self.gate = nn.Linear(width, inner, bias=bias)
        self.up = nn.Linear(width, inner, bias=bias)
        down_bias = bias if config.down_bias is None else config.down_bias
        self.down = nn.Linear(inner, width, bias=down_bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., E)` to `(..., E)`."""
        if self.gate is None:
            hidden = self.activation(self.up(x))
        else:
            hidden = self.activation(self.gate(x)) * self.up(x)
        out: Tensor = self.down(hidden)
        return out
