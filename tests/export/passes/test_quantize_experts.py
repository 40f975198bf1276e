"""MoE nodes become QMoE nodes that compute with the values of their codes."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]
import pytest
import torch
from numpy.typing import NDArray

from ortolan.export.passes.quantize_experts import QuantizeExperts
from ortolan.export.quantize import rtn
from ortolan.export.quantize.blocks import dequantize, pack, pack_zeros
from ortolan.export.scheme import Scheme

EXPERTS, SIZE, WIDTH = 3, 64, 96

ATTRIBUTES = """k = 2, activation_type = "swiglu", swiglu_fusion = 1, activation_alpha = 1.7,
    activation_beta = 1.0, swiglu_limit = 2.0, normalize_routing_weights = 1"""

HEADER = '<ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>'

BIASED = f"""
{HEADER}
g (float[T, {WIDTH}] x, float[T, {EXPERTS}] r) => (float[T, {WIDTH}] y) {{
    y = com.microsoft.MoE <{ATTRIBUTES}> (x, r, up, up_bias, down, down_bias)
}}
"""

BARE = f"""
{HEADER}
g (float[T, {WIDTH}] x, float[T, {EXPERTS}] r) => (float[T, {WIDTH}] y) {{
    y = com.microsoft.MoE <{ATTRIBUTES}> (x, r, up, , down)
}}
"""

RANDOM = torch.Generator().manual_seed(0)

WEIGHTS = {
    "up": torch.randn(EXPERTS, 2 * SIZE, WIDTH, generator=RANDOM) * 0.1,
    "down": torch.randn(EXPERTS, WIDTH, SIZE, generator=RANDOM) * 0.1,
}
BIASES = {
    "up_bias": torch.randn(EXPERTS, 2 * SIZE, generator=RANDOM),
    "down_bias": torch.randn(EXPERTS, WIDTH, generator=RANDOM),
}
INPUTS = {
    "x": torch.randn(7, WIDTH, generator=RANDOM).numpy(),
    "r": torch.randn(7, EXPERTS, generator=RANDOM).numpy(),
}


def graph(text: str, values: dict[str, torch.Tensor]) -> ir.Model:
    proto = onnx.parser.parse_model(text)
    for name, value in values.items():
        if name in text:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(value.numpy(), name))
    return ir.from_proto(proto)


def result(model: ir.Model) -> NDArray[np.float32]:
    data = ir.to_proto(model).SerializeToString()
    session: Any = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    out: NDArray[np.float32] = session.run(None, INPUTS)[0]
    return out


def filled(model: ir.Model, scheme: Scheme) -> dict[str, torch.Tensor]:
    """Put codes into a graph, and return their values."""
    values = {}
    for name, weight in WEIGHTS.items():
        codes = [rtn.quantize(expert, scheme) for expert in weight]
        values[name] = torch.stack([dequantize(c) for c in codes])
        data = {
            f"{name}.codes": torch.stack([pack(c) for c in codes]),
            f"{name}.scales": torch.stack([c.scales for c in codes]),
        }
        zeros = [packed for c in codes if (packed := pack_zeros(c)) is not None]
        if zeros:
            data[f"{name}.zeros"] = torch.stack(zeros)
        for initializer, tensor in data.items():
            value = model.graph.initializers[initializer]
            assert value.shape is not None
            value.const_value = ir.tensor(tensor.numpy().reshape(tuple(value.shape.numpy())))
    return values


@pytest.mark.parametrize("text", [BIASED, BARE], ids=["biased", "bare"])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_rewritten_node_computes_with_the_values_of_its_codes(
    bits: Any, text: str, symmetric: bool
) -> None:
    scheme = Scheme(bits=bits, group=32, symmetric=symmetric)
    model = graph(text, WEIGHTS | BIASES)
    QuantizeExperts(dict.fromkeys(WEIGHTS, scheme))(model)
    (node,) = model.graph
    assert node.op_type == "QMoE"
    assert not {"up", "down"} & set(model.graph.initializers)
    expected = result(graph(text, filled(model, scheme) | BIASES))
    # The kernel rounds activations to 8 bits.
    assert np.abs(result(model) - expected).max() < 0.03 * np.abs(expected).max()


def test_a_node_that_is_not_in_the_plan_stays() -> None:
    model = graph(BIASED, WEIGHTS | BIASES)
    assert not QuantizeExperts({"other": Scheme(bits=4, group=32)})(model).modified
    assert [node.op_type for node in model.graph] == ["MoE"]
