"""Passes that fold, share and move nodes."""

import numpy as np
from tests.export.passes.graphs import Pass, normal

from ortolan.export.passes.pick_early import pick_early
from ortolan.export.passes.rules import fold_casts, fold_offsets, route_by_logits, select_booleans
from ortolan.export.passes.shapes import drop_reshapes, share_shapes

RESHAPED = """
g (float[batch, sequence, 8] x) => (float[OUT] y) <float[AXES] last MORE> {
    sizes = Shape <start = 0, end = 2> (x)
    NODES
    y = Neg (last)
}
"""

HEADS = (
    "four = Constant <value_ints = [2, 4]> () to = Concat <axis = 0> (sizes, four) "
    "heads = Reshape (x, to)"
)
LAST = HEADS.replace("heads", "last")
BACK = (
    "eight = Constant <value_ints = [-1]> () flat = Concat <axis = 0> (sizes, eight) "
    "last = Reshape (heads, flat)"
)
AGAIN = "to2 = Constant <value_ints = [0, 0, 4, 2]> () last = Reshape (heads, to2)"


def reshaped(nodes: str, axes: str, *, heads: str = "") -> str:
    """A graph with named axes, as in a trace."""
    more = f", float[{heads}] heads" if heads else ""
    text = RESHAPED.replace("NODES", nodes).replace("MORE", more).replace("AXES", axes)
    return text.replace("OUT", axes.replace("?", "n"))


ROUTED = """
g (float[5, 8] x, float[5, 4] logits, float[5, 4] others, WEIGHTS) => (float[5, 8] y) {
    k = Constant <value_ints = [2]> ()
    last = Constant <value_ints = [-1]> ()
    least = Constant <value_float = 1e-30> ()
    ROUTER
    floored = Clip (weights, least)
    logs = Log (floored)
    routed = ScatterElements <axis = -1> (others, chosen, logs)
    mixed = com.microsoft.MoE
        <k = 2, activation_type = "swiglu", swiglu_fusion = 1, normalize_routing_weights = 1>
        (x, routed, first, , second)
    total = ReduceSum (weights, last)
    y = Mul (mixed, total)
}
"""

CAST = "g (int64[n] x, float[n] f) => (float[n] y) { NODES }"

OFFSET = """
g (float[2, 8] x, WEIGHTS) => (float[2, 8] y) <float one = {1.0}> {
    more = Add (SUM)
    y = Mul (x, more)
}
"""

PICKED = """
g (float[batch, sequence, 4] x, float[batch, sequence, 4] other, int64[batch, rows, 1] at, WEIGHTS)
=> (float[batch, rows, 4] y OUT) {
    NODES
    y = GatherND <batch_dims = 1> (last, at)
}
"""


def picked(nodes: str, out: str = "") -> str:
    return PICKED.replace("NODES", nodes).replace("OUT", out)


STREAM = ", float[batch, sequence, 4] z"

SHAPES = """
g (float[batch, length, 3] a, int64[batch, length] b, float[batch, other] c, float d)
    => (int64[k] sizes) <float[batch, length, 3] n>
{
    n = Neg (a)
    l = Shape <start = 1, end = 2> (a)
    m = Shape <start = 1, end = 2> (n)
    o = Shape <start = 1> (c)
    p = Shape (b)
    w = Shape <start = -1> (n)
    r = Shape (d)
    sizes = Concat <axis = 0> (l, m, o, p, w, r)
}
"""

X = normal(2, 5, 4, seed=1).numpy()

SIMPLIFICATIONS = {
    "drop_reshapes": Pass(
        make=lambda: drop_reshapes,
        rewritten={
            "there and back": (
                reshaped(f"{HEADS} {BACK}", "batch, sequence, 8", heads="batch, sequence, 2, 4"),
                "Neg",
            ),
            "a shape as numbers": (
                reshaped(LAST, "batch, sequence, 2, 4"),
                "Constant Reshape Neg",
            ),
            "the second of two": (
                reshaped(
                    f"{HEADS} {AGAIN}", "batch, sequence, 4, 2", heads="batch, sequence, 2, 4"
                ),
                "Constant Reshape Neg",
            ),
        },
        kept={
            "unknown axes": reshaped(LAST, "?, ?, 2, 4"),
            "two other axes": reshaped(LAST, "other, names, 2, 4"),
        },
        weights={},
        feeds={"x": normal(2, 3, 8).numpy()},
    ),
    "FoldCasts": Pass(
        make=lambda: fold_casts,
        rewritten={
            name: (CAST.replace("NODES", f"{nodes} y = Mul (f, c)"), "Constant Mul")
            for name, nodes in {
                "cast": "one = Constant <value_int = 3> () c = Cast <to = 1> (one)",
                "like": "one = Constant <value_int = 3> () c = CastLike (one, f)",
                "vector": "one = Constant <value_ints = [3]> () c = CastLike (one, f)",
            }.items()
        },
        kept={
            "no constant": CAST.replace("NODES", "c = Cast <to = 1> (x) y = Mul (f, c)"),
            "long": CAST.replace(
                "NODES",
                f"o = Constant <value_ints = [{', '.join('123456789')}]> () y = Cast <to = 1> (o)",
            ),
        },
        weights={},
        feeds={"x": np.arange(4), "f": np.arange(4, dtype="f")},
    ),
    "FoldOffsets": Pass(
        make=lambda: fold_offsets,
        rewritten={pair: (OFFSET.replace("SUM", pair), "Mul") for pair in ("w, one", "one, w")},
        kept={pair: OFFSET.replace("SUM", pair) for pair in ("x, one", "w, x", "w, w")},
        weights={"w": normal(8)},
        feeds={"x": normal(2, 8, seed=1).numpy()},
    ),
    "pick_early": Pass(
        make=lambda: pick_early,
        rewritten={
            "an activation": (picked("last = Relu (x)"), "GatherND Relu"),
            "a bias": (picked("last = Add (x, b)"), "GatherND Add"),
            "a norm": (
                picked("last = RMSNormalization <axis = -1> (x, n)"),
                "GatherND RMSNormalization",
            ),
            "a residual": (picked("last = Add (x, other)"), "GatherND GatherND Add"),
            "a residual of one value": (
                picked("n1 = Neg (x) r = Relu (n1) last = Add (n1, r)"),
                "GatherND Neg Relu Add",
            ),
            "a product": (
                picked("last = com.microsoft.FusedMatMul <transB = 1> (x, w)"),
                "GatherND FusedMatMul",
            ),
            "a gate": (
                picked("r = Relu (x) last = Mul (x, r)"),
                "GatherND GatherND Relu Mul",
            ),
            # `z` needs all tokens of `n1`; of `r` and the sum only the picked ones are needed.
            "a stream that goes on": (
                picked("n1 = Neg (x) z = Tanh (n1) r = Relu (n1) last = Add (n1, r)", STREAM),
                "Neg Tanh GatherND GatherND Relu Add",
            ),
        },
        kept={
            "what is mixed along the tokens": picked(
                "one = Constant <value_int = 1> () last = CumSum (x, one)"
            ),
            "a norm over tokens": picked("last = LayerNormalization <axis = 1> (x, x)"),
            "what another node reads": picked("last = Relu (x) z = Neg (last)", STREAM),
            "moved axes": picked(
                "a = Transpose <perm = [0, 2, 1]> (x) c = Relu (a) "
                "last = Transpose <perm = [0, 2, 1]> (c)"
            ),
        },
        weights={"w": normal(4, 4), "b": normal(4, seed=2), "n": normal(4, seed=3)},
        feeds={"x": X, "other": X + 1, "at": np.array([[[4], [0]], [[1], [3]]])},
    ),
    "RouteByLogits": Pass(
        make=lambda: route_by_logits,
        rewritten={
            "the softmax of all experts": (
                ROUTED.replace(
                    "ROUTER", "scores = Softmax (logits) weights, chosen = TopK (scores, k)"
                ),
                "Constant Constant Softmax TopK MoE ReduceSum Mul",
            ),
            "weights that add up to 1": (
                ROUTED.replace(
                    "ROUTER",
                    "scores = Softmax (logits) best, chosen = TopK (scores, k) "
                    "sum = ReduceSum (best, last) weights = Div (best, sum)",
                ),
                "MoE",
            ),
            "the softmax of the chosen experts": (
                ROUTED.replace(
                    "ROUTER", "best, chosen = TopK (logits, k) weights = Softmax (best)"
                ),
                "MoE",
            ),
        },
        kept={
            "sigmoids": ROUTED.replace(
                "ROUTER", "scores = Sigmoid (logits) weights, chosen = TopK (scores, k)"
            ),
            "weights of other experts": ROUTED.replace(
                "ROUTER",
                "scores = Softmax (logits) weights, best = TopK (scores, k) "
                "moved = Add (logits, others) top, chosen = TopK (moved, k)",
            ),
        },
        weights={"first": normal(4, 12, 8), "second": normal(4, 8, 6, seed=2)},
        feeds={
            "x": normal(5, 8, seed=3).numpy(),
            "logits": normal(5, 4, seed=4).numpy(),
            "others": np.full((5, 4), -1e4, np.float32),
        },
        atol=1e-5,
    ),
    "SelectBooleans": Pass(
        make=lambda: select_booleans,
        rewritten={},  # onnxruntime cannot run the graph before
        kept={
            "numbers": "g (bool[8] c, float[8] a, float[8] b) => (float[8] y) "
            "{ y = Where (c, a, b) }"
        },
        weights={},
        feeds={},
    ),
    "share_shapes": Pass(
        make=lambda: share_shapes,
        # The length, another length, both axes, a width that is known, no axes at all.
        rewritten={"equal names": (SHAPES, "Neg Shape Shape Shape Shape Shape Concat")},
        kept={
            "axes without names": "g (float[?] a, float[?] b) => (int64[1] p, int64[1] q) "
            "{ p = Shape (a) q = Shape (b) }"
        },
        weights={},
        feeds={
            "a": np.zeros((2, 5, 3), np.float32),
            "b": np.zeros((2, 5), np.int64),
            "c": np.zeros((2, 7), np.float32),
            "d": np.zeros((), np.float32),
        },
    ),
}
