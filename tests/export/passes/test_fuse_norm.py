import numpy as np
import onnx_ir as ir
import pytest
from tests.export.passes.graphs import assert_kept, normal, operators, parsed, rewritten

from ortolan.export.passes.fuse_norm import FuseNorm

X = normal(2, 3, 8, seed=1).numpy()
W = normal(8)

RMS = """
g (float[batch, 3, 8] x, WEIGHTS) => (float[batch, 3, 8] y)
<int64[1] last = {-1}, float two = {2.0}, float eps = {1e-4}> {
    square = SQUARE
    mean = ReduceMean <keepdims = 1> (square, last)
    sum = Add (mean, eps)
    NORMED
    y = Mul (SCALED)
}
"""

ROOT = "root = Sqrt (sum)"

INVERSE = f"{ROOT} inverse = Reciprocal (root)"

SPELLINGS = {
    "power and reciprocal": ("Pow (x, two)", f"{INVERSE} normed = Mul (x, inverse)"),
    "product and quotient": ("Mul (x, x)", f"{ROOT} normed = Div (x, root)"),
    "a negative power": (
        "Pow (x, two)",
        "half = Constant <value_float = -0.5> () inverse = Pow (sum, half) "
        "normed = Mul (x, inverse)",
    ),
    "factors turned": ("Pow (x, two)", f"{INVERSE} normed = Mul (inverse, x)"),
}


def rms(square: str, normed: str, scaled: str = "w, normed") -> ir.Model:
    text = RMS.replace("SQUARE", square).replace("NORMED", normed).replace("SCALED", scaled)
    return parsed(text, w=W)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("scaled", ["w, normed", "normed, w"])
def test_a_norm_that_is_spelled_out_becomes_one_node(spelling: str, scaled: str) -> None:
    model = rewritten(FuseNorm(), rms(*SPELLINGS[spelling], scaled), {"w": W}, x=X)
    assert operators(model) == ["RMSNormalization"]
    assert model.graph[0].attributes.get_float("epsilon") == pytest.approx(1e-4)


LAYER = """
g (float[batch, 3, 8] z, WEIGHTS) => (float[batch, 3, 8] y)
<int64[1] last = {-1}, float two = {2.0}, float eps = {1e-4}> {
    first = ReduceMean <keepdims = 1> (z, last)
    x = Sub (z, first)
    square = Pow (x, two)
    mean = ReduceMean <keepdims = 1> (square, last)
    sum = Add (mean, eps)
    root = Sqrt (sum)
    inverse = Reciprocal (root)
    normed = Mul (x, inverse)
    y = Mul (w, normed)
}
"""


def test_a_norm_without_the_mean_becomes_a_layer_norm_without_a_bias() -> None:
    model = rewritten(FuseNorm(), parsed(LAYER, w=W), {"w": W}, z=X)
    assert operators(model) == ["LayerNormalization"]


HALF = """
g (float16[batch, 3, 8] narrow, WEIGHTS) => (float16[batch, 3, 8] y)
<int64[1] last = {-1}, float two = {2.0}, float eps = {1e-4}> {
    x = Cast <to = 1> (narrow)
    square = Pow (x, two)
    mean = ReduceMean <keepdims = 1> (square, last)
    sum = Add (mean, eps)
    root = Sqrt (sum)
    inverse = Reciprocal (root)
    wide = Mul (x, inverse)
    normed = Cast <to = 10> (wide)
    y = Mul (w, normed)
}
"""


WIDE = HALF.replace(
    "normed = Cast <to = 10> (wide)\n    y = Mul (w, normed)",
    "v = Cast <to = 1> (w)\n    scaled = Mul (wide, v)\n    y = Cast <to = 10> (scaled)",
)


@pytest.mark.parametrize("text", [HALF, WIDE], ids=["before the weight", "after the weight"])
def test_casts_around_a_norm_are_part_of_the_node(text: str) -> None:
    model = rewritten(
        FuseNorm(), parsed(text, w=W.half()), {"w": W}, narrow=X.astype(np.float16), atol=5e-3
    )
    assert operators(model) == ["RMSNormalization"]
    assert [value.dtype for value in model.graph[0].inputs if value] == [ir.DataType.FLOAT16] * 2


WITHOUT = {
    "scaled by a number": "normed, two",
    "scaled by what is computed": "normed, x",
}


@pytest.mark.parametrize("case", WITHOUT)
def test_a_norm_without_a_weight_gets_one_of_ones(case: str) -> None:
    model = rms("Mul (x, x)", f"{ROOT} normed = Div (x, root)", WITHOUT[case])
    assert operators(rewritten(FuseNorm(), model, {"w": W}, x=X)) == ["RMSNormalization", "Mul"]


KEPT = {
    "another power": ("Pow (x, eps)", SPELLINGS["power and reciprocal"][1], "w, normed"),
    "square of something else": ("Mul (x, w)", SPELLINGS["product and quotient"][1], "w, normed"),
    "quotient turned": ("Mul (x, x)", f"{ROOT} normed = Div (root, x)", "w, normed"),
    "root has another reader": (
        "Mul (x, x)",
        f"{ROOT} normed = Div (x, root) other = Neg (root) unread = Neg (other)",
        "normed, w",
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_other_formulas_stay(case: str) -> None:
    assert_kept(FuseNorm(), rms(*KEPT[case]))


@pytest.mark.parametrize(("old", "new"), [("-1", "1"), ("keepdims = 1", "keepdims = 0")])
def test_a_mean_over_another_axis_stays(old: str, new: str) -> None:
    text = RMS.replace("SQUARE", "Mul (x, x)").replace("NORMED", f"{ROOT} normed = Div (x, root)")
    model = parsed(text.replace("SCALED", "w, normed").replace(old, new), w=W)
    assert_kept(FuseNorm(), model)
