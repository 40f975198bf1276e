import numpy as np
import onnx_ir as ir
import pytest
from tests.export.passes.graphs import Array, normal, parsed, run

from ortolan.export.passes.pick_early import PickEarly

X = normal(2, 5, 4, seed=1).numpy()
ROWS = np.array([[[4], [0]], [[1], [3]]])
WEIGHTS = {"w": normal(4, 4), "b": normal(4, seed=2), "n": normal(4, seed=3)}

TEXT = """
g (float[batch, sequence, 4] x, float[batch, sequence, 4] other, int64[batch, rows, 1] at, WEIGHTS)
=> (float[batch, rows, 4] y OUT) {
    NODES
    y = GatherND <batch_dims = 1> (last, at)
}
"""


def graph(nodes: str, out: str = "") -> ir.Model:
    return parsed(TEXT.replace("NODES", nodes).replace("OUT", out), **WEIGHTS)


def results(model: ir.Model) -> list[Array]:
    return run(model, WEIGHTS, x=X, other=X + 1, at=ROWS)


def picks(model: ir.Model) -> list[str | None]:
    """Names of what tokens are picked of."""
    found = [node.inputs[0] for node in model.graph if node.op_type == "GatherND"]
    return [value.name for value in found if value is not None]


MOVED = {
    "an activation": ("last = Relu (x)", ["x"]),
    "a bias": ("last = Add (x, b)", ["x"]),
    "a norm": ("last = RMSNormalization <axis = -1> (x, n)", ["x"]),
    "a residual": ("last = Add (x, other)", ["x", "other"]),
    "a residual of one value": ("n1 = Neg (x) r = Relu (n1) last = Add (n1, r)", ["x"]),
    "a product": ("last = com.microsoft.FusedMatMul <transB = 1> (x, w)", ["x"]),
    "a gate": ("s = Sigmoid (x) last = Mul (x, s)", ["x"]),
}


@pytest.mark.parametrize("case", MOVED)
def test_tokens_are_picked_before_what_is_computed_of_each(case: str) -> None:
    nodes, wanted = MOVED[case]
    model = graph(nodes)
    before = results(model)
    assert PickEarly()(model).modified
    assert set(picks(model)) == set(wanted)
    assert [value.name for value in model.graph.outputs] == ["y"]
    np.testing.assert_allclose(results(model)[0], before[0], rtol=1e-6)
    assert not PickEarly()(model).modified


KEPT = {
    "what is mixed along the tokens": "last = CumSum (x, axis) ",
    "a norm over tokens": "last = LayerNormalization <axis = 1> (x, x)",
    "what another node reads": "last = Relu (x) z = Neg (last)",
    "moved axes": "a = Transpose <perm = [0, 2, 1]> (x) c = Relu (a) "
    "last = Transpose <perm = [0, 2, 1]> (c)",
}


@pytest.mark.parametrize("case", KEPT)
def test_what_tokens_share_stays_before_the_pick(case: str) -> None:
    nodes = KEPT[case].replace("axis)", "one)")
    one = "one = Constant <value_int = 1> ()" if "one)" in nodes else ""
    out = ", float[batch, sequence, 4] z" if " z " in nodes else ""
    model = graph(f"{one} {nodes}", out)
    assert not PickEarly()(model).modified


def test_a_stream_that_goes_on_is_picked_where_it_is_left() -> None:
    """The tokens of `n1` are needed by `z`, those of `r` and the sum only where they are picked."""
    model = graph(
        "n1 = Neg (x) z = Tanh (n1) r = Relu (n1) last = Add (n1, r)",
        ", float[batch, sequence, 4] z",
    )
    before = results(model)
    assert PickEarly()(model).modified
    assert set(picks(model)) == {"n1"}
    for old, new in zip(before, results(model), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6)
