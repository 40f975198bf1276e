import numpy as np
import onnx_ir as ir
import pytest
from tests.export.passes.graphs import assert_kept, normal, operators, parsed, rewritten

from ortolan.export.derived import Recipe, recipes_of
from ortolan.export.passes.pack_projections import PackProjections

WEIGHTS = {
    "wq": normal(32, 16),
    "wk": normal(16, 16, seed=1),
    "wv": normal(16, 16, seed=2),
    "bq": normal(32, seed=3),
    "bk": normal(16, seed=4),
    "bv": normal(16, seed=5),
    "n": normal(8, seed=6),
}

X = normal(2, 3, 16, seed=7).numpy()

TEXT = """
g (float[batch, sequence, 16] x, float[batch, sequence, 16] z, float[batch, 2, 8, 8] pk,
   float[batch, 2, 8, 8] pv, int32[batch] last, int32 total, WEIGHTS)
=> (float[batch, sequence, 32] y) {
    NODES
    y, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>
        (q, k, v, pk, pv, last, total)
}
"""

LINEAR = "OUT = com.microsoft.FusedMatMul <transB = 1> (SOURCE, wPART)"


def linear(part: str, out: str, source: str = "x") -> str:
    return LINEAR.replace("OUT", out).replace("SOURCE", source).replace("PART", part)


PLAIN = " ".join(linear(part, part) for part in "qkv")
BIASED = " ".join(f"{linear(p, f'{p}0')} {p} = Add ({p}0, b{p})" for p in "qkv")


def normed(part: str, heads: int) -> str:
    """A product whose heads are normed."""
    return (
        f"{linear(part, f'{part}0')} "
        f"{part}s = Constant <value_ints = [0, 0, {heads}, 8]> () "
        f"{part}1 = Reshape ({part}0, {part}s) "
        f"{part}2 = RMSNormalization <axis = -1> ({part}1, n) "
        f"{part}f = Constant <value_ints = [0, 0, {8 * heads}]> () "
        f"{part} = Reshape ({part}2, {part}f)"
    )


NORMED = f"{normed('q', 4)} {normed('k', 2)} {linear('v', 'v')}"


def graph(nodes: str) -> ir.Model:
    return parsed(TEXT.replace("NODES", nodes), **WEIGHTS)


def packed(nodes: str) -> ir.Model:
    lengths, empty = np.array([2, 2], np.int32), np.zeros((2, 2, 8, 8), np.float32)
    feeds = {"x": X, "z": X + 1, "pk": empty, "pv": empty, "last": lengths}
    feeds["total"] = np.array(3, np.int32)
    return rewritten(PackProjections(), graph(nodes), WEIGHTS, atol=1e-4, **feeds)


def test_three_products_of_one_tensor_become_one() -> None:
    model = packed(PLAIN)
    assert operators(model) == ["FusedMatMul", "GroupQueryAttention"]
    parts = ("wq", "wk", "wv")
    assert recipes_of([model]) == {"wq+wk+wv": Recipe(parts)}
    assert model.graph[1].inputs[1:3] == (None, None)


def test_biases_are_joined_too() -> None:
    model = packed(BIASED)
    assert operators(model) == ["FusedMatMul", "Add", "GroupQueryAttention"]
    assert set(recipes_of([model])) == {"wq+wk+wv", "bq+bk+bv"}


def test_normed_projections_are_split_off_the_joined_product() -> None:
    model = packed(NORMED)
    assert operators(model).count("FusedMatMul") == operators(model).count("Split") == 1
    assert None not in model.graph[-1].inputs[:3]


KEPT = {
    "values of another tensor": PLAIN.replace("(x, wv", "(z, wv"),
    "one of three has a bias": f"{linear('q', 'q0')} q = Add (q0, bq) "
    f"{linear('k', 'k')} {linear('v', 'v')}",
    "keys that are values": f"{linear('q', 'q')} {linear('k', 'k')} v = Identity (k)",
    "a product that is read elsewhere": PLAIN.replace("v =", "v0 =") + " v = Relu (v0)",
}


@pytest.mark.parametrize("case", KEPT)
def test_other_products_stay(case: str) -> None:
    assert_kept(PackProjections(), graph(KEPT[case]))
