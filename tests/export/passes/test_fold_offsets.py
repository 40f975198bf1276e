import numpy as np
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


@pytest.mark.parametrize("inputs", ["x, one", "w, x", "w, w"])
def test_other_sums_stay(inputs: str) -> None:
    model = parsed(TEXT.replace("SUM", inputs), w=W)
    assert not FoldOffsets()(model).modified
    assert operators(model) == ["Add", "Mul"]
