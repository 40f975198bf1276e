import numpy as np
import onnx_ir as ir
import pytest
from tests.export.passes.graphs import normal, operators, parsed, run

from ortolan.export.derived import Recipe, recipes_of
from ortolan.export.passes.fold_offsets import FoldOffsets

W = normal(8)

TEXT = """
g (float[2, 8] x, WEIGHTS) => (float[2, 8] y) <float one = {1.0}> {
    more = Add (SUM)
    y = Mul (x, more)
}
"""


@pytest.mark.parametrize("inputs", ["w, one", "one, w"])
def test_a_number_added_to_a_weight_is_added_when_its_rows_are_read(inputs: str) -> None:
    model = parsed(TEXT.replace("SUM", inputs), w=W)
    x = normal(2, 8, seed=1).numpy()
    before = run(model, {"w": W}, x=x)
    assert FoldOffsets()(model).modified
    assert operators(model) == ["Mul"]
    assert recipes_of([model]) == {"plus_1.w": Recipe(("w",), offset=1.0)}
    np.testing.assert_array_equal(run(model, {"w": W}, x=x)[0], before[0])
    assert not FoldOffsets()(model).modified


def test_a_number_added_after_a_cast_is_added_before_it() -> None:
    text = TEXT.replace("more = Add (SUM)", "wide = Cast <to = 1> (w) more = Add (wide, one)")
    model = parsed(text, w=W.half())
    assert FoldOffsets()(model).modified
    ir.passes.common.RemoveUnusedNodesPass()(model)
    assert operators(model) == ["Cast", "Mul"]
    x = normal(2, 8, seed=1).numpy()
    wanted = x * (1 + W.half().numpy()).astype(np.float32)
    np.testing.assert_allclose(run(model, {"w": W.half()}, x=x)[0], wanted, rtol=1e-3)


@pytest.mark.parametrize("inputs", ["x, one", "w, x", "w, w"])
def test_other_sums_stay(inputs: str) -> None:
    model = parsed(TEXT.replace("SUM", inputs), w=W)
    assert not FoldOffsets()(model).modified
    assert operators(model) == ["Add", "Mul"]
