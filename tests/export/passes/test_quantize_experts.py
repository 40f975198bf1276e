"""MoE nodes become QMoE nodes that compute with the values of their codes."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.export.passes.graphs import assert_kept, normal, operators, parsed, run

from ortolan.export.passes.quantize_experts import QuantizeExperts
from ortolan.export.quantize import rtn
from ortolan.export.quantize.blocks import dequantize, pack, pack_zeros
from ortolan.export.scheme import Scheme

EXPERTS, SIZE, WIDTH = 3, 64, 96

TEXT = f"""
g (float[T, {WIDTH}] x, float[T, {EXPERTS}] r, WEIGHTS) => (float[T, {WIDTH}] y) {{
    y = com.microsoft.MoE <k = 2, activation_type = "swiglu", swiglu_fusion = 1,
        activation_alpha = 1.7, activation_beta = 1.0, swiglu_limit = 2.0,
        normalize_routing_weights = 1> (x, r, INPUTS)
}}
"""

WEIGHTS = {
    "up": normal(EXPERTS, 2 * SIZE, WIDTH) * 0.1,
    "down": normal(EXPERTS, WIDTH, SIZE, seed=1) * 0.1,
}
BIASES = {
    "up_bias": normal(EXPERTS, 2 * SIZE, seed=2),
    "down_bias": normal(EXPERTS, WIDTH, seed=3),
}
FEEDS = {"x": normal(7, WIDTH, seed=4).numpy(), "r": normal(7, EXPERTS, seed=5).numpy()}

INPUTS = {"biased": "up, up_bias, down, down_bias", "bare": "up, , down"}


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_rewritten_node_computes_with_the_values_of_its_codes(
    bits: Any, inputs: str, symmetric: bool
) -> None:
    scheme = Scheme(bits=bits, group=32, symmetric=symmetric)
    stored, values = dict(BIASES), dict(BIASES)
    for name, weight in WEIGHTS.items():
        codes = [rtn.quantize(expert, scheme) for expert in weight]
        values[name] = torch.stack([dequantize(c) for c in codes])
        stored[f"{name}.codes"] = torch.stack([pack(c).flatten(1) for c in codes])
        stored[f"{name}.scales"] = torch.stack([c.scales for c in codes])
        zeros = [packed for c in codes if (packed := pack_zeros(c)) is not None]
        if zeros:
            stored[f"{name}.zeros"] = torch.stack(zeros)
    text = TEXT.replace("INPUTS", INPUTS[inputs])
    model = parsed(text, **WEIGHTS, **BIASES)
    (expected,) = run(model, values, **FEEDS)
    QuantizeExperts(dict.fromkeys(WEIGHTS, scheme))(model)
    assert operators(model) == ["QMoE"]
    assert not {"up", "down"} & set(model.graph.initializers)
    # The kernel rounds activations to 8 bits.
    (got,) = run(model, stored, **FEEDS)
    assert np.abs(got - expected).max() < 0.03 * np.abs(expected).max()


def test_a_node_that_is_not_in_the_plan_stays() -> None:
    model = parsed(TEXT.replace("INPUTS", INPUTS["biased"]), **WEIGHTS, **BIASES)
    assert_kept(QuantizeExperts({"other": Scheme(bits=4, group=32)}), model)
