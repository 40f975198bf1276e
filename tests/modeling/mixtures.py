"""Configs of mixtures of experts that together use every field, and the formula in NumPy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.modeling.config import MixtureConfig

Array = NDArray[np.float64]

FEW = MixtureConfig(experts=6, per_token=2, intermediate_size=16)

CHANGES: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "one": {"per_token": 1},
    "all": {"per_token": 6},
    "not normalised": {"normalised": False},
    "scaled": {"scale": 2.5},
    "scaled, not normalised": {"normalised": False, "scale": 2.5},
    "sigmoid": {"score": "sigmoid"},
    "sigmoid, not normalised": {"score": "sigmoid", "normalised": False, "scale": 0.5},
    "selection bias": {"selection_bias": True},
    "sigmoid, selection bias": {"score": "sigmoid", "selection_bias": True, "normalised": False},
    "groups": {"score": "sigmoid", "selection_bias": True, "groups": 3, "groups_per_token": 2},
    "groups of a softmax": {"groups": 2, "per_token": 3},
    "sparsemixer": {"score": "sparsemixer", "jitter": 0.1, "normalised": False},
    "sparsemixer, normalised": {"score": "sparsemixer", "jitter": 0.4, "scale": 2.0},
    "biases": {"router_bias": True, "expert_bias": True},
    "limit": {"limit": 0.3, "alpha": 1.7, "beta": 1.0, "expert_bias": True},
    "shared": {"shared_size": 24},
    "shared, gated": {"shared_size": 24, "shared_gate": True, "normalised": False},
}
"""Fields that differ from `FEW`, by name."""


def sigmoid(x: Array) -> Array:
    out: Array = 1 / (1 + np.exp(-x))
    return out


def softmax(x: Array) -> Array:
    exponents: Array = np.exp(x - x.max())
    shares: Array = exponents / exponents.sum()
    return shares


def weights_of(logits: Array, bias: Array, config: MixtureConfig) -> dict[int, float]:
    """Weights of the chosen experts of one token."""
    if config.score == "sparsemixer":
        by_expert = _mixed_sparsely(logits, config.jitter)
    else:
        scores = softmax(logits) if config.score == "softmax" else sigmoid(logits)
        ranks = scores + bias
        size = config.experts // config.groups
        groups = [range(g * size, (g + 1) * size) for g in range(config.groups)]
        groups.sort(key=lambda group: -sum(sorted(ranks[i] for i in group)[-2:]))
        allowed = [i for group in groups[: config.groups_per_token] for i in group]
        by_expert = {
            i: scores[i] for i in sorted(allowed, key=lambda i: -ranks[i])[: config.per_token]
        }
    total = sum(by_expert.values()) if config.normalised else 1.0
    return {expert: config.scale * weight / total for expert, weight in by_expert.items()}


def _mixed_sparsely(logits: Array, jitter: float) -> dict[int, float]:
    left = list(range(len(logits)))
    by_expert = {}
    for _ in range(2):
        best = max(left, key=lambda i: logits[i])
        top = logits[best]
        close = [i for i in left if top - logits[i] <= 2 * jitter * max(abs(logits[i]), top)]
        by_expert[best] = float(1 / sum(np.exp(logits[i] - top) for i in close))
        left.remove(best)
    return by_expert


def mixed(x: Array, weights: Mapping[str, Array], config: MixtureConfig) -> Array:
    """Output of a mixture for one token, `(E,)`, from its parameters by name."""
    logits = weights["router.weight"] @ x + weights.get("router.bias", 0.0)
    bias = weights.get("selection_bias", np.zeros(config.experts))
    out = np.zeros_like(x)
    for expert, weight in weights_of(logits, bias, config).items():
        out += weight * _expert(x, weights, expert, config)
    if config.shared_size is not None:
        gate = weights["shared.gate.weight"] @ x
        inner = gate * sigmoid(gate) * (weights["shared.up.weight"] @ x)
        shared = weights["shared.down.weight"] @ inner
        if config.shared_gate:
            shared = sigmoid(weights["shared_gate.weight"] @ x) * shared
        out += shared
    return out


def _expert(x: Array, weights: Mapping[str, Array], number: int, config: MixtureConfig) -> Array:
    both, down = (weights[f"experts.{name}"][number] for name in ("gate_up", "down"))
    gate, up = both[0::2] @ x, both[1::2] @ x
    if config.expert_bias:
        gate = gate + weights["experts.gate_up_bias"][number][0::2]
        up = up + weights["experts.gate_up_bias"][number][1::2]
    if config.limit is not None:
        gate, up = np.minimum(gate, config.limit), np.clip(up, -config.limit, config.limit)
    out: Array = down @ (gate * sigmoid(config.alpha * gate) * (up + config.beta))
    return out + weights["experts.down_bias"][number] if config.expert_bias else out
