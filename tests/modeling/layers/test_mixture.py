"""Gradients and contradictions of a mixture. For the formula see families/test_parity.py."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.modeling.kinds import WIDTH, randomised
from tests.modeling.mixtures import FEW

from ortolan.modeling.config import MixtureConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.layers.mixture import Mixture

X = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(3))


def test_gradients_reach_the_router_and_the_chosen_experts() -> None:
    layer = randomised(Mixture(replace(FEW, normalised=False), WIDTH))
    layer(X).square().sum().backward()
    for parameter in (layer.router.weight, layer.experts.gate_up, layer.experts.down):
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"per_token": 7},
        {"per_token": 0},
        {"intermediate_size": 0},
        {"score": "sparsemixer", "per_token": 3},
        {"groups": 4},
        {"groups": 6},
        {"groups": 2, "groups_per_token": 3},
        {"groups": 3, "per_token": 3},
    ],
)
def test_an_invalid_mixture_is_an_error(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^mixture: "):
        MixtureConfig(**({"experts": 6, "per_token": 2, "intermediate_size": 16} | changes))
