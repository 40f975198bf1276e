"""Gradients and contradictions of a mixture. For the formula see families/test_parity.py."""

from dataclasses import replace

import torch
from tests.modeling.kinds import WIDTH, randomised
from tests.modeling.mixtures import FEW

from ortolan.modeling.layers.mixture import Mixture

X = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(3))


def test_gradients_reach_the_router_and_the_chosen_experts() -> None:
    layer = randomised(Mixture(replace(FEW, normalised=False), WIDTH))
    layer(X).square().sum().backward()
    for parameter in (layer.router.weight, layer.experts.gate_up, layer.experts.down):
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0
