"""Passes that make one node of several."""

import numpy as np
from tests.export.passes.graphs import Pass, normal

from ortolan.export.passes.fuse_gelu import fuse_gelu
from ortolan.export.passes.norms import fuse_norm, fuse_skip_norms
from ortolan.export.passes.pack_projections import pack_projections
from ortolan.export.passes.rules import fuse_linear, norm_before_transpose, transpose_weights

# --- GELU ---------------------------------------------------------------------------------------

GELU = """
g (float[5, 16] x) => (float[5, 16] y)
<float half = {0.5}, float one = {1.0}, float two = {2.0}, float three = {3.0},
 float root = {1.41421356}, float inverse = {0.70710678}, float cubic = {0.044715},
 float slope = {0.79788456}> { NODES }
"""

TANH = "d = Mul (cubic, c) e = Add (x, d) f = Mul (slope, e) b = Tanh (f)"

FORMULAS = {
    "error function of a quotient": "a = Div (x, root) b = Erf (a)",
    "error function of a product": "a = Mul (x, inverse) b = Erf (a)",
    "cube as a power": f"c = Pow (x, three) {TANH}",
    "cube as products": "c = Mul (x, cubic) d = Mul (c, x) e = Add (d, one) g = Mul (x, slope) "
    "f = Mul (g, e) b = Tanh (f)",
}

LASTS = {
    "half of x": "h = Mul (half, x) i = Add (one, b) y = Mul (h, i)",
    "half of x, turned": "h = Mul (x, half) i = Add (b, one) y = Mul (i, h)",
}


def gelu(formula: str, last: str = LASTS["half of x"]) -> str:
    return GELU.replace("NODES", f"{formula} {last}")


# --- norms --------------------------------------------------------------------------------------

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
DIVIDED = f"{ROOT} normed = Div (x, root)"
HALF_POWER = "half = Constant <value_float = -0.5> () inverse = Pow (sum, half)"

SPELLINGS = {
    "power and reciprocal": ("Pow (x, two)", f"{INVERSE} normed = Mul (x, inverse)"),
    "product and quotient": ("Mul (x, x)", DIVIDED),
    "a negative power": ("Pow (x, two)", f"{HALF_POWER} normed = Mul (x, inverse)"),
    "factors turned": ("Pow (x, two)", f"{INVERSE} normed = Mul (inverse, x)"),
}


def rms(square: str = "Mul (x, x)", normed: str = DIVIDED, scaled: str = "w, normed") -> str:
    return RMS.replace("SQUARE", square).replace("NORMED", normed).replace("SCALED", scaled)


LAYER = (
    rms(*SPELLINGS["power and reciprocal"])
    .replace("8] x", "8] z")
    .replace("square =", "first = ReduceMean <keepdims = 1> (z, last) x = Sub (z, first) square =")
)

HALF = (
    rms("Pow (x, two)", f"{INVERSE} wide = Mul (x, inverse) normed = Cast <to = 10> (wide)")
    .replace("float[batch, 3, 8] x", "float16[batch, 3, 8] z")
    .replace("float[batch, 3, 8] y", "float16[batch, 3, 8] y")
    .replace("square =", "x = Cast <to = 1> (z) square =")
)

WIDE = HALF.replace("normed = Cast <to = 10> (wide)", "v = Cast <to = 1> (w)").replace(
    "y = Mul (w, normed)", "scaled = Mul (wide, v) y = Cast <to = 10> (scaled)"
)

SKIP = """
g (float[SIZES] a, float[SIZES] b, WEIGHTS) => (float[SIZES] y OUT) {
    sum = Add (a, b)
    y = RMSNormalization <axis = -1, epsilon = 1e-4> (sum, w)
}
"""


def skip(out: str = "", sizes: str = "batch, 3, 8") -> str:
    return SKIP.replace("SIZES", sizes).replace("OUT", out)


MOVED = """
g (float[b, s, 2, 8] x, WEIGHTS) => (float[A, C, D, E] y) {
    turned = Transpose <perm = [PERM]> (x)
    normed = NORM (turned, w)
    y = Neg (normed)
}
"""


def moved(norm: str = "RMSNormalization <axis = -1>", perm: str = "0, 2, 1, 3") -> str:
    return MOVED.replace("PERM", perm).replace("NORM", norm)


# --- products -----------------------------------------------------------------------------------

LINEAR = "g (float[A, B] x, float[C, D] z, WEIGHTS) => (float[E, F] y MORE) { NODES }"


def linear(nodes: str, more: str = "") -> str:
    return LINEAR.replace("NODES", nodes).replace("MORE", more)


TRANSPOSE = "t = Transpose <perm = [1, 0]> (w)"

VIEWS = """
g (float[b, s, 4] v, WEIGHTS) => (float[b, s, 6] y)
<int64[2] flat = {-1, 4}, int64[1] six = {6}, float[b, s, 6] last> {
    sizes = Shape <start = 0, end = 2> (v)
    back = Concat <axis = 0> (sizes, six)
    rows = Reshape (v, flat)
    sums = Gemm (rows, w, b)
    last = Reshape (sums, back)
    y = Neg (last)
}
"""


def gemm(attributes: str, weight: str = "w") -> str:
    nodes = f"y = Gemm {attributes} (x, {weight}, b)"
    return f"g (float[r, 4] x, WEIGHTS) => (float[r, 6] y) {{ {nodes} }}"


PROJECTIONS = """
g (float[batch, sequence, 16] x, float[batch, sequence, 16] z, float[batch, 2, 8, 8] pk,
   float[batch, 2, 8, 8] pv, int32[batch] last, int32 total, WEIGHTS)
=> (float[batch, sequence, 32] y) {
    NODES
    y, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>
        (q, k, v, pk, pv, last, total)
}
"""


def projections(nodes: str) -> str:
    return PROJECTIONS.replace("NODES", nodes)


def project(part: str, out: str = "", source: str = "x") -> str:
    return f"{out or part} = com.microsoft.FusedMatMul <transB = 1> ({source}, w{part})"


def normed(part: str, heads: int) -> str:
    """A product whose heads are normed."""
    return (
        f"{project(part, f'{part}0')} "
        f"{part}s = Constant <value_ints = [0, 0, {heads}, 8]> () "
        f"{part}1 = Reshape ({part}0, {part}s) "
        f"{part}2 = RMSNormalization <axis = -1> ({part}1, n) "
        f"{part}f = Constant <value_ints = [0, 0, {8 * heads}]> () "
        f"{part} = Reshape ({part}2, {part}f)"
    )


BIASED = " ".join(f"{project(p, f'{p}0')} {p} = Add ({p}0, b{p})" for p in "qkv")

X = normal(2, 3, 8, seed=1).numpy()

FUSIONS = {
    "fuse_gelu": Pass(
        make=lambda: fuse_gelu,
        rewritten={
            f"{name}, {last}": (gelu(formula, LASTS[last]), "Gelu")
            for name, formula in FORMULAS.items()
            for last in LASTS
        },
        kept={
            "another factor": gelu("a = Div (x, two) b = Erf (a)"),
            "of something else": gelu("c = Neg (x) a = Div (c, root) b = Erf (a)"),
            "a square": gelu(f"c = Pow (x, two) {TANH}"),
            "sigmoid": gelu("a = Sigmoid (x)", "y = Mul (x, a)"),
        },
        weights={},
        feeds={"x": normal(5, 16, seed=1).numpy() * 3},
        atol=2e-6,
    ),
    "fuse_norm": Pass(
        make=lambda: fuse_norm,
        rewritten={
            **{
                f"{name}, {scaled}": (rms(*SPELLINGS[name], scaled), "RMSNormalization")
                for name in SPELLINGS
                for scaled in ("w, normed", "normed, w")
            },
            "without the mean": (LAYER, "LayerNormalization"),
            "scaled by a number": (rms(scaled="normed, two"), "RMSNormalization Mul"),
            "scaled by what is computed": (rms(scaled="normed, x"), "RMSNormalization Mul"),
        },
        kept={
            "another power": rms("Pow (x, eps)", SPELLINGS["power and reciprocal"][1]),
            "square of something else": rms("Mul (x, w)"),
            "quotient turned": rms(normed=f"{ROOT} normed = Div (root, x)"),
            "root has another reader": rms(
                normed=f"{DIVIDED} other = Neg (root) unread = Neg (other)"
            ),
            "a mean over another axis": rms().replace("-1", "1"),
            "a mean without its axis": rms().replace("keepdims = 1", "keepdims = 0"),
        },
        weights={"w": normal(8)},
        feeds={"x": X, "z": X},
    ),
    "fuse_norm in float16": Pass(
        make=lambda: fuse_norm,
        rewritten={
            "a cast before the weight": (HALF, "RMSNormalization"),
            "a cast after the weight": (WIDE, "RMSNormalization"),
        },
        kept={},
        weights={"w": normal(8).half()},
        feeds={"z": X.astype(np.float16)},
        atol=5e-3,
    ),
    "fuse_skip_norms": Pass(
        make=lambda: fuse_skip_norms,
        rewritten={
            "a sum": (skip(), "SkipSimplifiedLayerNormalization"),
            "a sum that is an output": (
                skip(", float[batch, 3, 8] sum"),
                "SkipSimplifiedLayerNormalization",
            ),
        },
        kept={
            "a bias is added": skip().replace("float[batch, 3, 8] b", "float[8] b"),
            "two axes are normed": skip().replace("axis = -1", "axis = 1"),
            "a norm of an input": skip().replace("(sum, w)", "(a, w)"),
            "a norm of heads": skip(sizes="batch, 3, 2, 8"),
        },
        weights={"w": normal(8)},
        feeds={"a": X, "b": normal(2, 3, 8, seed=2).numpy()},
    ),
    "NormBeforeTranspose": Pass(
        make=lambda: norm_before_transpose,
        rewritten={
            norm: (moved(norm), f"{norm.split()[0]} Transpose Neg")
            for norm in (
                "RMSNormalization <axis = -1>",
                "LayerNormalization <axis = 3>",
                "RMSNormalization",
            )
        },
        kept={
            "the last axis moves": moved(perm="3, 1, 2, 0"),
            "the norm is over two axes": moved("RMSNormalization <axis = 2>"),
        },
        weights={"w": normal(8)},
        feeds={"x": normal(2, 3, 2, 8, seed=1).numpy()},
    ),
    "FuseLinear": Pass(
        make=lambda: fuse_linear,
        rewritten={
            "a transposed weight": (linear(f"{TRANSPOSE} y = MatMul (x, t)"), "FusedMatMul"),
            "a transpose with other readers": (
                linear(
                    f"{TRANSPOSE} p = MatMul (x, t) q = MatMul (z, t) y = Add (p, q) n = Neg (t)",
                    ", float[4, 3] n",
                ),
                "Transpose FusedMatMul FusedMatMul Add Neg",
            ),
        },
        kept={
            "weight is not transposed": linear("y = MatMul (x, w)"),
            "weight is an input": linear(
                f"{TRANSPOSE.replace('(w)', '(z)')} y = MatMul (x, t)",
            ),
            "transpose is on the left": linear(f"{TRANSPOSE} y = MatMul (t, x)"),
            "axes are not swapped": linear(
                f"{TRANSPOSE.replace('1, 0', '0, 1')} y = MatMul (x, t)"
            ),
            "weight is computed": linear(
                f"n = Neg (w) {TRANSPOSE.replace('(w)', '(n)')} y = MatMul (x, t)"
            ),
        },
        weights={"w": normal(3, 4)},
        feeds={"x": normal(2, 4, seed=1).numpy(), "z": normal(2, 4, seed=2).numpy()},
    ),
    "TransposeWeights": Pass(
        make=lambda: transpose_weights,
        rewritten={
            "a product": (
                "g (float[b, s, 4] v, WEIGHTS) => (float[b, s, 6] y) { y = MatMul (v, w) }",
                "FusedMatMul",
            ),
            "views around a sum": (VIEWS, "FusedMatMul Add Neg"),
            "a sum of rows": (gemm("<transB = 0>"), "FusedMatMul Add"),
            "a sum of rows, transposed": (gemm("<transB = 1>", "t"), "FusedMatMul Add"),
        },
        kept={
            **{text: gemm(text) for text in ("<alpha = 2.0>", "<beta = 0.5>", "<transA = 1>")},
            "two computed tensors": "g (float[b, s, 4] v, float[4, 6] u) => (float[b, s, 6] y) "
            "{ y = MatMul (v, u) }",
        },
        weights={"w": normal(4, 6), "t": normal(6, 4, seed=3), "b": normal(6, seed=2)},
        feeds={"v": normal(2, 3, 4, seed=1).numpy(), "x": normal(3, 4, seed=1).numpy()},
    ),
    "pack_projections": Pass(
        make=lambda: pack_projections,
        rewritten={
            "three products": (
                projections(" ".join(map(project, "qkv"))),
                "FusedMatMul GroupQueryAttention",
            ),
            "with biases": (projections(BIASED), "FusedMatMul Add GroupQueryAttention"),
            "with norms": (
                projections(f"{normed('q', 4)} {normed('k', 2)} {project('v')}"),
                "FusedMatMul Constant Split Constant Reshape RMSNormalization Constant Reshape "
                "Constant Reshape RMSNormalization Constant Reshape GroupQueryAttention",
            ),
        },
        kept={
            "values of another tensor": projections(
                f"{project('q')} {project('k')} {project('v', source='z')}"
            ),
            "one of three has a bias": projections(
                f"{project('q', 'q0')} q = Add (q0, bq) {project('k')} {project('v')}"
            ),
            "keys that are values": projections(f"{project('q')} {project('k')} v = Identity (k)"),
            "a product that is read elsewhere": projections(
                f"{project('q')} {project('k')} {project('v', 'v0')} v = Relu (v0)"
            ),
        },
        weights={
            "wq": normal(32, 16),
            "wk": normal(16, 16, seed=1),
            "wv": normal(16, 16, seed=2),
            "bq": normal(32, seed=3),
            "bk": normal(16, seed=4),
            "bv": normal(16, seed=5),
            "n": normal(8, seed=6),
        },
        feeds={
            "x": normal(2, 3, 16, seed=7).numpy(),
            "z": normal(2, 3, 16, seed=8).numpy(),
            "pk": np.zeros((2, 2, 8, 8), np.float32),
            "pv": np.zeros((2, 2, 8, 8), np.float32),
            "last": np.array([2, 2], np.int32),
            "total": np.array(3, np.int32),
        },
        atol=1e-4,
    ),
}
