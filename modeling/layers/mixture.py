"""A mixture of experts, and the routing of tokens to experts.

Shape letters: T tokens, E model width, I expert width, N experts, K experts per token, G groups of
experts.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ortolan.modeling.config import FeedForwardConfig, MixtureConfig
from ortolan.modeling.layers import nodes
from ortolan.modeling.layers.feed_forward import FeedForward

NEVER = -1e4
"""A logit whose softmax is zero, also in float16."""

SMALLEST = 1e-30
"""Lower bound of weights, so that they have a logarithm."""


class Routing(NamedTuple):
    """The experts of each token and their weights, int64 and floats `(T, K)`."""

    chosen: Tensor
    weights: Tensor


class NodeRouting(NamedTuple):
    """Routing for a node that takes the softmax of each token's K highest logits.

    Attributes:
        logits: `(T, N)`.
        factor: multiplies the node's output; `(T, 1)` or a number.
    """

    logits: Tensor
    factor: Tensor | float


def route(logits_TN: Tensor, bias_N: Tensor | None, config: MixtureConfig) -> Routing:
    """Choose the experts of each token from router logits and the bias of the selection."""
    if config.score == "sparsemixer":
        return _mix_sparsely(logits_TN, config)
    scores_TN = _scores(logits_TN, config)
    chosen_TK = _ranks(scores_TN, bias_N, config).topk(config.per_token).indices
    weights_TK = scores_TN.gather(-1, chosen_TK)
    if config.normalised:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True).clamp(min=SMALLEST)
    return Routing(chosen_TK, weights_TK * config.scale)


def node_routing(logits_TN: Tensor, bias_N: Tensor | None, config: MixtureConfig) -> NodeRouting:
    """Inputs that make a node weigh the experts as `route` does."""
    if config.score == "sparsemixer":
        chosen_TK, weights_TK = _mix_sparsely(logits_TN, config)
        logs_TK = weights_TK.clamp(min=SMALLEST).log()
        logits_TN = torch.full_like(logits_TN, NEVER).scatter(-1, chosen_TK, logs_TK)
        return NodeRouting(logits_TN, weights_TK.sum(-1, keepdim=True))
    scores_TN = _scores(logits_TN, config)
    # A softmax's logarithm is its logits minus a constant, which another softmax cancels.
    if config.score == "sigmoid":
        logits_TN = scores_TN.clamp(min=SMALLEST).log()
    best_TN = scores_TN
    if bias_N is not None or config.groups > 1:
        ranks_TN = _ranks(scores_TN, bias_N, config)
        is_chosen_TN = ranks_TN >= ranks_TN.topk(config.per_token).values[..., -1:]
        logits_TN = logits_TN.masked_fill(~is_chosen_TN, NEVER)
        best_TN = scores_TN.masked_fill(~is_chosen_TN, 0.0)
    if config.normalised:
        return NodeRouting(logits_TN, config.scale)
    total_T1 = best_TN.topk(config.per_token).values.sum(-1, keepdim=True)
    return NodeRouting(logits_TN, total_T1 if config.scale == 1.0 else total_T1 * config.scale)


def _scores(logits_TN: Tensor, config: MixtureConfig) -> Tensor:
    return logits_TN.softmax(-1) if config.score == "softmax" else logits_TN.sigmoid()


def _ranks(scores_TN: Tensor, bias_N: Tensor | None, config: MixtureConfig) -> Tensor:
    """Scores that experts are selected by; -inf in groups that were not selected."""
    ranks_TN = scores_TN if bias_N is None else scores_TN + bias_N
    if config.groups == 1:
        return ranks_TN
    by_group_TGM = torch.unflatten(ranks_TN, -1, (config.groups, -1))
    sums_TG = by_group_TGM.topk(2).values.sum(-1)
    is_best_TG = sums_TG >= sums_TG.topk(config.groups_per_token).values[..., -1:]
    return by_group_TGM.masked_fill(~is_best_TG[..., None], -torch.inf).flatten(-2)


def _mix_sparsely(logits_TN: Tensor, config: MixtureConfig) -> Routing:
    """SparseMixer at inference: two experts, each the best of those left."""
    left_TN = logits_TN
    chosen, weights = [], []
    for _ in range(2):
        best_T1, expert_T1 = left_TN.max(-1, keepdim=True)
        # The distance includes all logits, also that of the first expert.
        size_TN = torch.maximum(logits_TN.abs(), best_T1)
        is_far_TN = (best_T1 - logits_TN) / size_TN > 2 * config.jitter
        close_TN = left_TN.masked_fill(is_far_TN, -torch.inf)
        chosen.append(expert_T1)
        weights.append(close_TN.softmax(-1).gather(-1, expert_T1))
        left_TN = left_TN.scatter(-1, expert_T1, -torch.inf)
    weights_TK = torch.cat(weights, -1)
    if config.normalised:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
    return Routing(torch.cat(chosen, -1), weights_TK * config.scale)


class Experts(nn.Module):
    """Weights of all experts of a layer; rows of gate and up alternate."""

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
            # The same bound as `nn.Linear`.
            bound = 1 / math.sqrt(size if parameter is self.down else width)
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x_TE: Tensor, routing: Routing) -> Tensor:
        """Weighted sum of the outputs of each token's experts, `(T, E)` to `(T, E)`."""
        out_TE = torch.zeros_like(x_TE)
        for number in torch.unique(routing.chosen).tolist():
            token, place = (routing.chosen == number).nonzero(as_tuple=True)
            out = self._compute(number, x_TE[token])
            out_TE = out_TE.index_add(0, token, out * routing.weights[token, place, None])
        return out_TE

    def _compute(self, number: int, x: Tensor) -> Tensor:
        """Compute one expert, reading only its weights: others may not be in memory."""
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
    """A router, its experts, and an optional expert that all tokens share."""

    def __init__(self, config: MixtureConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(width, config.experts, bias=config.router_bias)
        self.selection_bias: nn.Parameter | None = (
            nn.Parameter(torch.zeros(config.experts)) if config.selection_bias else None
        )
        self.experts = Experts(config, width)
        self.shared: FeedForward | None = None
        if config.shared_size is not None:
            shared = FeedForwardConfig(
                kind="gated", intermediate_size=config.shared_size, activation="silu"
            )
            self.shared = FeedForward(shared, width)
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
        out = nodes.mixture(
            x,
            node.logits,
            (experts.gate_up, experts.gate_up_bias),
            (experts.down, experts.down_bias),
            spec=self.config,
        )
        is_one = isinstance(node.factor, float) and node.factor == 1.0
        return out if is_one else out * node.factor
