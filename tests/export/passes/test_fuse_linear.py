import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from ortolan.export.passes import FuseLinear

HEADER = '<ir_version: 10, opset_import: ["" : 24]>'

WEIGHT = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)

LINEAR = f"""
{HEADER}
g (float[2, 4] x) => (float[2, 3] y) {{
    turned = Transpose <perm = [1, 0]> (w)
    product = MatMul (x, turned)
    y = Relu (product)
}}
"""

OUTPUT = f"""
{HEADER}
g (float[2, 4] x) => (float[2, 3] y) {{
    turned = Transpose <perm = [1, 0]> (w)
    y = MatMul (x, turned)
}}
"""

SHARED = f"""
{HEADER}
g (float[2, 4] x, float[2, 4] z) => (float[2, 3] y, float[4, 3] t) {{
    turned = Transpose <perm = [1, 0]> (w)
    product = MatMul (x, turned)
    other = MatMul (z, turned)
    y = Add (product, other)
    t = Neg (turned)
}}
"""

KEPT = {
    "weight is not transposed": f"""
{HEADER}
g (float[2, 3] x) => (float[2, 4] y) {{
    y = MatMul (x, w)
}}
""",
    "weight is an input": f"""
{HEADER}
g (float[2, 4] x, float[3, 4] given) => (float[2, 3] y) {{
    turned = Transpose <perm = [1, 0]> (given)
    y = MatMul (x, turned)
}}
""",
    "transpose is on the left": f"""
{HEADER}
g (float[3, 5] x) => (float[4, 5] y) {{
    turned = Transpose <perm = [1, 0]> (w)
    y = MatMul (turned, x)
}}
""",
    "axes are not swapped": f"""
{HEADER}
g (float[2, 3] x) => (float[2, 4] y) {{
    turned = Transpose <perm = [0, 1]> (w)
    y = MatMul (x, turned)
}}
""",
    "weight is computed": f"""
{HEADER}
g (float[2, 4] x) => (float[2, 3] y) {{
    negative = Neg (w)
    turned = Transpose <perm = [1, 0]> (negative)
    y = MatMul (x, turned)
}}
""",
}


def parsed(text: str) -> ir.Model:
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    return ir.from_proto(proto)


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def run(model: ModelProto, **inputs: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results: list[NDArray[np.float32]] = session.run(None, inputs)
    return results


def numbers(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(2, 4)).astype(np.float32)


def test_product_with_a_transposed_weight_becomes_one_node_with_the_same_numbers() -> None:
    model = parsed(LINEAR)
    before = run(ir.to_proto(model), x=numbers(1))
    assert FuseLinear()(model).modified
    assert operators(model) == ["FusedMatMul", "Relu"]
    fused = model.graph[0]
    assert fused.domain == "com.microsoft"
    assert fused.attributes.get_int("transB") == 1
    assert [value.name for value in fused.inputs if value] == ["x", "w"]
    assert model.graph.opset_imports["com.microsoft"] == 1
    np.testing.assert_allclose(run(ir.to_proto(model), x=numbers(1)), before, rtol=1e-6)


def test_product_that_is_an_output_of_the_graph_keeps_its_name() -> None:
    model = parsed(OUTPUT)
    assert FuseLinear()(model).modified
    assert [value.name for value in model.graph.outputs] == ["y"]
    (y,) = run(ir.to_proto(model), x=numbers(1))
    np.testing.assert_allclose(y, numbers(1) @ WEIGHT.T, rtol=1e-5)


def test_transpose_with_another_reader_stays_beside_the_fused_products() -> None:
    model = parsed(SHARED)
    inputs = {"x": numbers(1), "z": numbers(2)}
    before = run(ir.to_proto(model), **inputs)
    FuseLinear()(model)
    assert sorted(operators(model)) == ["Add", "FusedMatMul", "FusedMatMul", "Neg", "Transpose"]
    for wanted, got in zip(before, run(ir.to_proto(model), **inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("case", KEPT)
def test_other_products_stay(case: str) -> None:
    model = parsed(KEPT[case])
    before = operators(model)
    assert not FuseLinear()(model).modified
    assert operators(model) == before
    assert "com.microsoft" not in model.graph.opset_imports


def test_second_run_changes_nothing() -> None:
    model = parsed(LINEAR)
    FuseLinear()(model)
    before = ir.to_proto(model).SerializeToString()
    assert not FuseLinear()(model).modified
    assert ir.to_proto(model).SerializeToString() == before
