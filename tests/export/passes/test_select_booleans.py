import numpy as np
from tests.export.passes.graphs import assert_kept, operators, parsed, run

from ortolan.export.passes.select_booleans import SelectBooleans


def test_a_choice_between_booleans_becomes_logic() -> None:
    # onnxruntime cannot run the graph before.
    model = parsed("g (bool[8] c, bool[8] a, bool[1] b) => (bool[8] y) { y = Where (c, a, b) }")
    assert SelectBooleans()(model).modified
    assert sorted(operators(model)) == ["And", "And", "Not", "Or"]
    condition, chosen = (np.arange(8) & bit > 0 for bit in (1, 2))
    for other in (False, True):
        feeds = {"c": condition, "a": chosen, "b": np.array([other])}
        (result,) = run(model, {}, **feeds)
        np.testing.assert_array_equal(result, np.where(condition, chosen, other))


def test_a_choice_between_numbers_stays() -> None:
    text = "g (bool[8] c, float[8] a, float[8] b) => (float[8] y) { y = Where (c, a, b) }"
    assert_kept(SelectBooleans(), parsed(text))
