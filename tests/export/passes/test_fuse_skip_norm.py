import numpy as np
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ortolan.export.passes import FuseSkipNorm

WIDTH = 16


def residual(*, shape_b: list[int | str], axis: int = -1, reads_sum: bool = True) -> ir.Model:
    """A sum of two inputs and its norm; the sum goes on where `reads_sum`."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("RMSNormalization", ["sum", "w"], ["norm"], axis=axis, epsilon=1e-4),
    ]
    names = ["norm", "sum"] if reads_sum else ["norm"]
    weight = np.linspace(0.5, 1.5, WIDTH).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "residual",
        [
            helper.make_tensor_value_info("a", TensorProto.FLOAT, ["batch", 3, WIDTH]),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, shape_b),
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 3, WIDTH]) for n in names],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 24)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def run(model: ir.Model) -> list[NDArray[np.float32]]:
    random = np.random.default_rng(0)
    feeds = {
        value.name: random.normal(
            size=[2 if not isinstance(d, int) else d for d in value.shape]
        ).astype(np.float32)
        for value in model.graph.inputs
        if value.name and value.shape
    }
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    outputs: list[NDArray[np.float32]] = session.run(None, feeds)
    return outputs


@pytest.mark.parametrize("reads_sum", [True, False])
def test_sum_and_norm_become_one_node_with_the_same_numbers(reads_sum: bool) -> None:
    model = residual(shape_b=["batch", 3, WIDTH], reads_sum=reads_sum)
    before = run(model)
    assert FuseSkipNorm()(model).modified
    assert operators(model) == ["SkipSimplifiedLayerNormalization"]
    node = model.graph[0]
    # Left at its default, the epsilon would be another one.
    assert node.attributes.get_float("epsilon") == pytest.approx(1e-4)
    for old, new in zip(before, run(model), strict=True):
        np.testing.assert_allclose(new, old, atol=1e-6)


@pytest.mark.parametrize(
    "model",
    [residual(shape_b=[WIDTH]), residual(shape_b=["batch", 3, WIDTH], axis=1)],
    ids=["a bias is added", "the norm is over two axes"],
)
def test_what_the_fused_node_cannot_do_stays(model: ir.Model) -> None:
    assert not FuseSkipNorm()(model).modified
    assert operators(model) == ["Add", "RMSNormalization"]


def test_a_norm_of_an_input_stays() -> None:
    model = residual(shape_b=["batch", 3, WIDTH])
    model.graph[1].replace_input_with(0, model.graph.inputs[0])
    assert not FuseSkipNorm()(model).modified


def test_a_second_time_changes_nothing() -> None:
    model = residual(shape_b=["batch", 3, WIDTH])
    FuseSkipNorm()(model)
    assert not FuseSkipNorm()(model).modified


def test_a_norm_of_heads_stays() -> None:
    model = residual(shape_b=["batch", 3, WIDTH])
    for value in model.graph[0].inputs:
        assert value is not None
        value.shape = ir.Shape(["batch", 3, 2, WIDTH // 2])
    assert not FuseSkipNorm()(model).modified
