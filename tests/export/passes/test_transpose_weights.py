import onnx_ir as ir
import pytest
from tests.export.passes.graphs import assert_kept, normal, operators, parsed, rewritten

from ortolan.export.derived import Recipe, recipes_of
from ortolan.export.passes.transpose_weights import TransposeWeights

W, B = normal(4, 6), normal(6, seed=2)
X = normal(2, 3, 4, seed=1).numpy()


def test_a_product_reads_the_weight_with_a_row_for_each_output() -> None:
    model = parsed("g (float[b, s, 4] x, WEIGHTS) => (float[b, s, 6] y) { y = MatMul (x, w) }", w=W)
    (product,) = rewritten(TransposeWeights(), model, {"w": W}, x=X).graph
    assert product.op_type == "FusedMatMul"
    assert product.attributes.get_int("transB") == 1
    assert recipes_of([model]) == {"T.w": Recipe(("w",), transposed=True)}


VIEWS = """
g (float[b, s, 4] x, WEIGHTS) => (float[b, s, 6] y)
<int64[2] flat = {-1, 4}, int64[3] back = {2, 3, 6}> {
    rows = Reshape (x, flat)
    sums = Gemm (rows, w, b)
    y = Reshape (sums, back)
}
"""


def test_a_sum_of_product_and_bias_loses_the_views_around_it() -> None:
    model = parsed(VIEWS, w=W, b=B)
    model.graph.outputs[0].shape = ir.Shape(["b", "s", 6])
    assert operators(rewritten(TransposeWeights(), model, {"w": W, "b": B}, x=X)) == [
        "FusedMatMul",
        "Add",
    ]


FLAT = "g (float[r, 4] x, WEIGHTS) => (float[r, 6] y) { y = Gemm ATTRIBUTES (x, w, b) }"


@pytest.mark.parametrize("transposed", [False, True])
def test_a_sum_of_rows_stays_one_of_rows(transposed: bool) -> None:
    weights = {"w": W.T.contiguous() if transposed else W, "b": B}
    model = parsed(FLAT.replace("ATTRIBUTES", f"<transB = {int(transposed)}>"), **weights)
    model = rewritten(TransposeWeights(), model, weights, x=X[0])
    assert operators(model) == ["FusedMatMul", "Add"]
    assert bool(recipes_of([model])) != transposed


@pytest.mark.parametrize("attributes", ["<alpha = 2.0>", "<beta = 0.5>", "<transA = 1>"])
def test_a_scaled_or_transposed_sum_stays(attributes: str) -> None:
    assert_kept(TransposeWeights(), parsed(FLAT.replace("ATTRIBUTES", attributes), w=W, b=B))


def test_a_product_of_two_computed_tensors_stays() -> None:
    text = "g (float[b, s, 4] x, float[4, 6] w) => (float[b, s, 6] y) { y = MatMul (x, w) }"
    assert_kept(TransposeWeights(), parsed(text))
