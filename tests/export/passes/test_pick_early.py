import numpy as np
import onnx_ir as ir
import pytest
from tests.export.passes.graphs import assert_kept, normal, parsed, rewritten

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


def moved(nodes: str, out: str = "") -> ir.Model:
    return rewritten(PickEarly(), graph(nodes, out), WEIGHTS, x=X, other=X + 1, at=ROWS)


def picks(model: ir.Model) -> list[str | None]:
    """Names of the values from which tokens are picked."""
    values = [node.inputs[0] for node in model.graph if node.op_type == "GatherND"]
    return [value.name for value in values if value is not None]


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
def test_tokens_are_picked_before_nodes_that_compute_each_on_its_own(case: str) -> None:
    nodes, values = MOVED[case]
    assert set(picks(moved(nodes))) == set(values)


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
    assert_kept(PickEarly(), graph(f"{one} {nodes}", out))


def test_a_stream_that_goes_on_is_picked_where_it_is_left() -> None:
    """`z` needs all tokens of `n1`; of `r` and the sum only the picked ones are needed."""
    nodes = "n1 = Neg (x) z = Tanh (n1) r = Relu (n1) last = Add (n1, r)"
    assert set(picks(moved(nodes, ", float[batch, sequence, 4] z"))) == {"n1"}
