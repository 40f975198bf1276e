"""Configs of mixtures of experts that together use every field."""

from collections.abc import Mapping
from typing import Any

from ortolan.modeling.config import MixtureConfig

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
