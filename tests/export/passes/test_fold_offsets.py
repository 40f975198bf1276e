import numpy as np
import pytest
from tests.export.passes.graphs import assert_kept, normal, operators, parsed, rewritten, run

from ortolan.export.derived import Recipe, recipes_of
from ortolan.export.passes.fold_offsets import FoldOffsets

W = normal(8)
X = normal(2, 8, seed=1).numpy()

TEXT = """
g (float[2, 8] x, WEIGHTS) => (float[2, 8] y) <float one = {1.0}> {
    more = Add (SUM)
    y = Mul (x, more)
}
"""


@pytest.mark.parametrize("inputs", ["w, one", "one, w"])
def test_a_number_added_to_a_weight_is_added_when_its_rows_are_read(inputs: str) -> None:
    model = rewritten(FoldOffsets(), parsed(TEXT.replace("SUM", inputs), w=W), {"w": W}, x=X)
    assert operators(model) == ["Mul"]
    assert recipes_of([model]) == {"plus_1.w": Recipe(("w",), offset=1.0)}


def test_a_number_added_after_a_cast_is_added_before_it() -> None:
    text = TEXT.replace("more = Add (SUM)", "wide = Cast <to = 1> (w) more = Add (wide, one)")
    model = parsed(text, w=W.half())
    assert FoldOffsets()(model).modified
    assert operators(model) == ["Cast", "Cast", "Mul"]
    expected = X * (1 + W.half().numpy()).astype(np.float32)
    np.testing.assert_allclose(run(model, {"w": W.half()}, x=X)[0], expected, rtol=1e-3)


@pytest.mark.parametrize("inputs", ["x, one", "w, x", "w, w"])
def test_other_sums_stay(inputs: str) -> None:
    assert_kept(FoldOffsets(), parsed(TEXT.replace("SUM", inputs), w=W))
