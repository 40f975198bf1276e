import pytest
from tests.export.passes.graphs import assert_kept, normal, operators, parsed, rewritten

from ortolan.export.passes import FuseLinear

W = normal(3, 4)
X, Z = normal(2, 4, seed=1).numpy(), normal(2, 4, seed=2).numpy()

LINEAR = "t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t)"

SHARED = """
g (float[2, 4] x, float[2, 4] z, WEIGHTS) => (float[2, 3] y, float[4, 3] n) {
    t = Transpose <perm = [1, 0]> (w)
    product = MatMul (x, t)
    other = MatMul (z, t)
    y = Add (product, other)
    n = Neg (t)
}
"""

KEPT = {
    "weight is not transposed": "y = MatMul (x, w)",
    "weight is an input": "t = Transpose <perm = [1, 0]> (z) y = MatMul (x, t)",
    "transpose is on the left": "t = Transpose <perm = [1, 0]> (w) y = MatMul (t, x)",
    "axes are not swapped": "t = Transpose <perm = [0, 1]> (w) y = MatMul (x, t)",
    "weight is computed": "n = Neg (w) t = Transpose <perm = [1, 0]> (n) y = MatMul (x, t)",
}


def test_product_with_a_transposed_weight_becomes_one_node() -> None:
    model = parsed(f"g (float[2, 4] x, WEIGHTS) => (float[2, 3] y) {{ {LINEAR} }}", w=W)
    model.graph.opset_imports.pop("com.microsoft")
    (fused,) = rewritten(FuseLinear(), model, {"w": W}, x=X).graph
    assert (fused.domain, fused.op_type) == ("com.microsoft", "FusedMatMul")
    assert fused.attributes.get_int("transB") == 1
    assert [value.name for value in fused.inputs if value] == ["x", "w"]
    assert model.graph.opset_imports["com.microsoft"] == 1


def test_transpose_with_another_reader_stays_next_to_the_fused_products() -> None:
    model = rewritten(FuseLinear(), parsed(SHARED, w=W), {"w": W}, x=X, z=Z)
    assert sorted(operators(model)) == ["Add", "FusedMatMul", "FusedMatMul", "Neg", "Transpose"]


@pytest.mark.parametrize("case", KEPT)
def test_other_products_stay(case: str) -> None:
    model = parsed(
        f"g (float[a, b] x, float[c, d] z, WEIGHTS) => (float[e, f] y) {{ {KEPT[case]} }}", w=W
    )
    model.graph.opset_imports.pop("com.microsoft")
    assert_kept(FuseLinear(), model)
    assert "com.microsoft" not in model.graph.opset_imports
