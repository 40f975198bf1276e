"""The mixture of experts against the formula, one token at a time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.modeling.kinds import WIDTH, randomised
from tests.modeling.mixtures import CHANGES, FEW, mixed

from ortolan.modeling.config import MixtureConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.layers.mixture import Mixture

X = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", CHANGES)
def test_a_mixture_equals_the_formula(name: str) -> None:
    config = replace(FEW, **CHANGES[name])
    layer = randomised(Mixture(config, WIDTH))
    weights = {name: p.detach().double().numpy() for name, p in layer.named_parameters()}
    with torch.inference_mode():
        actual = layer(X)
    for row, text in zip(actual, X.double().numpy(), strict=True):
        expected = np.stack([mixed(token, weights, config) for token in text])
        np.testing.assert_allclose(row.numpy(), expected, rtol=1e-4, atol=1e-5)


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
