import pytest
from tests.export.passes.graphs import assert_kept, normal, operators, parsed, rewritten

from ortolan.export.passes.fuse_gelu import FuseGelu

X = normal(5, 16, seed=1).numpy() * 3

CONSTANTS = """<float half = {0.5}, float one = {1.0}, float two = {2.0}, float three = {3.0},
float root = {1.41421356}, float inverse = {0.70710678}, float cubic = {0.044715},
float slope = {0.79788456}>"""

HEAD = f"g (float[5, 16] x) => (float[5, 16] y) {CONSTANTS}"

FORMULAS = {
    "error function of a quotient": "a = Div (x, root) b = Erf (a) LAST",
    "error function of a product": "a = Mul (x, inverse) b = Erf (a) LAST",
    "cube as a power": "c = Pow (x, three) d = Mul (cubic, c) e = Add (x, d) f = Mul (slope, e) "
    "b = Tanh (f) LAST",
    "cube as products": "c = Mul (x, cubic) d = Mul (c, x) e = Add (d, one) g = Mul (x, slope) "
    "f = Mul (g, e) b = Tanh (f) LAST",
}

LASTS = {
    "half of x": "h = Mul (half, x) i = Add (one, b) y = Mul (h, i)",
    "half of x, turned": "h = Mul (x, half) i = Add (b, one) y = Mul (i, h)",
}


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("last", LASTS)
def test_a_formula_of_gelu_becomes_the_node(formula: str, last: str) -> None:
    text = f"{HEAD} {{ {FORMULAS[formula].replace('LAST', LASTS[last])} }}"
    model = rewritten(FuseGelu(), parsed(text), x=X, atol=2e-6)
    assert operators(model) == ["Gelu"]
    kind = "none" if "error" in formula else "tanh"
    assert model.graph[0].attributes.get_string("approximate", "none") == kind


KEPT = {
    "another factor": "a = Div (x, two) b = Erf (a) LAST",
    "of something else": "c = Neg (x) a = Div (c, root) b = Erf (a) LAST",
    "a square": "c = Pow (x, two) d = Mul (cubic, c) e = Add (x, d) f = Mul (slope, e) "
    "b = Tanh (f) LAST",
    "sigmoid": "a = Sigmoid (x) y = Mul (x, a)",
}


@pytest.mark.parametrize("case", KEPT)
def test_other_formulas_stay(case: str) -> None:
    text = f"{HEAD} {{ {KEPT[case].replace('LAST', LASTS['half of x'])} }}"
    assert_kept(FuseGelu(), parsed(text))
