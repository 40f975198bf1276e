"""Which experts each token is given to, and how much each of them counts.

Shape letters: T tokens, N experts, K experts of a token, G groups of experts.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ortolan.modeling.config import MixtureConfig

NEVER = -1e4
"""A logit that no softmax gives anything, in floats of 16 bits too."""

SMALLEST = 1e-30
"""Weights count as no less, so that they have a logarithm."""


class Routing(NamedTuple):
    """The experts of each token.

    Attributes:
        chosen: int64 `(T, K)`.
        weights: `(T, K)`.
    """

    chosen: Tensor
    weights: Tensor


class NodeRouting(NamedTuple):
    """The same as a node takes it that softmaxes the K highest logits of each token.

    Attributes:
        logits: `(T, N)`.
        factor: `(T, 1)`, or a number, that multiplies what the node gives.
    """

    logits: Tensor
    factor: Tensor | float


def route(logits_TN: Tensor, bias_N: Tensor | None, config: MixtureConfig) -> Routing:
    """The experts of each token, from the router's logits and the bias of the selection."""
    if config.score == "sparsemixer":
        return _mix_sparsely(logits_TN, config)
    scores_TN = _scores(logits_TN, config)
    chosen_TK = _ranks(scores_TN, bias_N, config).topk(config.per_token).indices
    weights_TK = scores_TN.gather(-1, chosen_TK)
    if config.normalised:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True).clamp(min=SMALLEST)
    return Routing(chosen_TK, weights_TK * config.scale)


def node_routing(logits_TN: Tensor, bias_N: Tensor | None, config: MixtureConfig) -> NodeRouting:
    """What makes a node compute with the weights of `route`."""
    if config.score == "sparsemixer":
        chosen_TK, weights_TK = _mix_sparsely(logits_TN, config)
        logs_TK = weights_TK.clamp(min=SMALLEST).log()
        logits_TN = torch.full_like(logits_TN, NEVER).scatter(-1, chosen_TK, logs_TK)
        return NodeRouting(logits_TN, weights_TK.sum(-1, keepdim=True))
    scores_TN = _scores(logits_TN, config)
    # The logarithm of a softmax is its logits and a number that another softmax takes out again.
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
    """What experts are chosen by: of a group that is none of the best, no expert is."""
    ranks_TN = scores_TN if bias_N is None else scores_TN + bias_N
    if config.groups == 1:
        return ranks_TN
    by_group_TGM = torch.unflatten(ranks_TN, -1, (config.groups, -1))
    sums_TG = by_group_TGM.topk(2).values.sum(-1)
    is_best_TG = sums_TG >= sums_TG.topk(config.groups_per_token).values[..., -1:]
    return by_group_TGM.masked_fill(~is_best_TG[..., None], -torch.inf).flatten(-2)


def _mix_sparsely(logits_TN: Tensor, config: MixtureConfig) -> Routing:
    """SparseMixer as it computes without training: two experts, each the best of those left."""
    left_TN = logits_TN
    chosen, weights = [], []
    for _ in range(2):
        best_T1, expert_T1 = left_TN.max(-1, keepdim=True)
        # The distance is that of all logits, those of the first expert too.
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
