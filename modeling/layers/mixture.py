"""A mixture of experts in the place of a feed-forward layer.

Shape letters: T tokens, E model width, I width of an expert, N experts, K experts of a token.
"""

import math

import torch
from torch import Tensor, nn

from ortolan.modeling.config import FeedForwardConfig, MixtureConfig
from ortolan.modeling.layers import lowering
from ortolan.modeling.layers.feed_forward import GatedMLP
from ortolan.modeling.layers.routing import Routing, node_routing, route


class Experts(nn.Module):
    """The weights of all experts of a layer, and what they compute.

    Attributes:
        gate_up: `(N, 2 * I, E)`; rows of the gate and of up alternate.
        down: `(N, E, I)`.
        gate_up_bias: `(N, 2 * I)`, if there is one.
        down_bias: `(N, E)`, if there is one.
    """

    def __init__(self, config: MixtureConfig, width: int) -> None:
        super().__init__()
        self.config = config
        count, size = config.experts, config.intermediate_size
        self.gate_up = nn.Parameter(torch.empty(count, 2 * size, width))
        self.down = nn.Parameter(torch.empty(count, width, size))
        self.gate_up_bias: nn.Parameter | None = None
        self.down_bias: nn.Parameter | None = None
        if config.expert_bias:
            self.gate_up_bias = nn.Parameter(torch.empty(count, 2 * size))
            self.down_bias = nn.Parameter(torch.empty(count, width))
        for parameter in self.parameters():
            # As `nn.Linear`: by the number of inputs.
            bound = 1 / math.sqrt(size if parameter is self.down else width)
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x_TE: Tensor, routing: Routing) -> Tensor:
        """The weighted sum of what the experts of each token give, `(T, E)` to `(T, E)`."""
        out_TE = torch.zeros_like(x_TE)
        for number in torch.unique(routing.chosen).tolist():
            token, place = (routing.chosen == number).nonzero(as_tuple=True)
            given = self._compute(number, x_TE[token])
            out_TE = out_TE.index_add(0, token, given * routing.weights[token, place, None])
        return out_TE

    def _compute(self, number: int, x: Tensor) -> Tensor:
        """One expert, which is all that is read where weights are not in memory."""
        gate_up_bias, down_bias = (
            None if bias is None else bias[number] for bias in (self.gate_up_bias, self.down_bias)
        )
        both = nn.functional.linear(x, self.gate_up[number], gate_up_bias)
        gate, up = both[..., ::2], both[..., 1::2]
        if self.config.limit is not None:
            gate = gate.clamp(max=self.config.limit)
            up = up.clamp(-self.config.limit, self.config.limit)
        inner = gate * torch.sigmoid(self.config.alpha * gate) * (up + self.config.beta)
        return nn.functional.linear(inner, self.down[number], down_bias)


class Mixture(nn.Module):
    """A router, experts, and perhaps one more for all tokens."""

    def __init__(self, config: MixtureConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(width, config.experts, bias=config.router_bias)
        self.selection_bias: nn.Parameter | None = (
            nn.Parameter(torch.zeros(config.experts)) if config.selection_bias else None
        )
        self.experts = Experts(config, width)
        self.shared: GatedMLP | None = None
        if config.shared_size is not None:
            shared = FeedForwardConfig(
                kind="gated", intermediate_size=config.shared_size, activation="silu"
            )
            self.shared = GatedMLP(shared, width)
        self.shared_gate: nn.Linear | None = (
            nn.Linear(width, 1, bias=False) if config.shared_gate else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """`(..., E)` to `(..., E)`."""
        out = self._mixed(x)
        if self.shared is not None:
            shared: Tensor = self.shared(x)
            if self.shared_gate is not None:
                shared = torch.sigmoid(self.shared_gate(x)) * shared
            out = out + shared
        return out

    def _mixed(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        if not torch.onnx.is_in_onnx_export():
            routing = route(logits.flatten(0, -2).float(), self.selection_bias, self.config)
            weights = routing.weights.to(x.dtype)
            out_TE: Tensor = self.experts(x.flatten(0, -2), routing._replace(weights=weights))
            return out_TE.view_as(x)
        node = node_routing(logits, self.selection_bias, self.config)
        experts = self.experts
        out = lowering.mixture(
            x,
            node.logits,
            (experts.gate_up, experts.gate_up_bias),
            (experts.down, experts.down_bias),
            spec=self.config,
        )
        is_one = isinstance(node.factor, float) and node.factor == 1.0
        return out if is_one else out * node.factor
