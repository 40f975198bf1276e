import onnx_ir as ir
import pytest
from tests.export.passes.graphs import assert_kept, normal, operators, parsed, rewritten

from ortolan.export.passes import FuseSkipNorm

W = normal(16)
A, B = normal(2, 3, 16).numpy(), normal(2, 3, 16, seed=1).numpy()

TEXT = """
g (float[batch, 3, 16] a, float[B] b, WEIGHTS) => (float[batch, 3, 16] y OUT) {
    sum = Add (a, b)
    y = RMSNormalization <axis = AXIS, epsilon = 1e-4> (sum, w)
}
"""


def residual(*, b: str = "batch, 3, 16", axis: int = -1, out: str = "") -> ir.Model:
    """A sum of two inputs and its norm."""
    text = TEXT.replace("[B]", f"[{b}]").replace("AXIS", str(axis)).replace("OUT", out)
    return parsed(text, w=W)


@pytest.mark.parametrize("out", ["", ", float[batch, 3, 16] sum"])
def test_sum_and_norm_become_one_node(out: str) -> None:
    model = rewritten(FuseSkipNorm(), residual(out=out), {"w": W}, a=A, b=B)
    assert operators(model) == ["SkipSimplifiedLayerNormalization"]
    # The default of the node is another one.
    assert model.graph[0].attributes.get_float("epsilon") == pytest.approx(1e-4)


@pytest.mark.parametrize(
    "model", [residual(b="16"), residual(axis=1)], ids=["a bias is added", "two axes are normed"]
)
def test_what_the_fused_node_cannot_do_stays(model: ir.Model) -> None:
    assert_kept(FuseSkipNorm(), model)


def test_a_norm_of_an_input_stays() -> None:
    model = residual()
    model.graph[1].replace_input_with(0, model.graph.inputs[0])
    assert_kept(FuseSkipNorm(), model)


def test_a_norm_of_heads_stays() -> None:
    model = residual()
    for value in model.graph.inputs:
        value.shape = ir.Shape(["batch", 3, 2, 8])
    assert_kept(FuseSkipNorm(), model)
