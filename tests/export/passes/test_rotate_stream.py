import numpy as np
import onnx_ir as ir
import pytest
import torch
from tests.export.passes.graphs import normal, operators, parsed, run

from ortolan.export.passes.rotate_stream import rotate_stream

WEIGHTS = {
    "table": normal(9, 12),
    "g0": normal(12, seed=1),
    "layers.0.in": normal(7, 12, seed=2),
    "layers.0.out": normal(12, 7, seed=3),
    "layers.0.bias": normal(12, seed=4),
    "g1": normal(12, seed=5),
    "layers.0.up": normal(8, 12, seed=6),
    "layers.0.down": normal(12, 8, seed=7),
    "g2": normal(12, seed=8),
    "head": normal(9, 12, seed=9),
}

NAMES = {name for name in WEIGHTS if name.startswith("layers") and "bias" not in name}

STREAM = ("p", "b", "d", "e", "x2", "x3")
"""Values of the width of the stream."""

IDS = np.array([[1, 8, 3, 0, 5]])

PICKED = np.array([[[1], [4]]])

HEADER = """
g (int64[1, s] ids, int64[1, r, 1] picked, WEIGHTS) => (float[1, r, 9] y) {
    x0 = Gather <axis = 0> (table, ids)
    half = Constant <value = float {0.5}> ()
"""

BODY = """
    n0 = RMSNormalization <epsilon = 1e-6> (x0, g0)
    a = com.microsoft.FusedMatMul <transB = 1> (n0, layers_0_in)
    t = Tanh (a)
    p = com.microsoft.FusedMatMul <transB = 1> (t, layers_0_out)
    b = Add (p, layers_0_bias)
    d = Mul (b, half)
    n1, m, v, x1 = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 1e-6> (x0, d, g1)
    u = com.microsoft.FusedMatMul <transB = 1> (n1, layers_0_up)
    r = Tanh (u)
    e = com.microsoft.FusedMatMul <transB = 1> (r, layers_0_down)
"""

END = """
    x2 = Add (x1, e)
    q = GatherND <batch_dims = 1> (x2, picked)
    n2 = RMSNormalization <epsilon = 1e-6> (q, g2)
    y = com.microsoft.FusedMatMul <transB = 1> (n2, head)
}
"""

KEPT = {
    "the stream is centered": (
        BODY,
        END.replace("x2 =", "x3 =")
        .replace("x1, e", "x1, e")
        .replace("q =", "mean = ReduceMean (x3)\n    x2 = Sub (x3, mean)\n    q ="),
    ),
    "a norm before each sum": (
        BODY.replace("e = com", "z = com") + "e = RMSNormalization <epsilon = 1e-6> (z, g2)\n",
        END,
    ),
    "two products of one weight": (
        BODY.replace(
            "r = Tanh (u)",
            "w = com.microsoft.FusedMatMul <transB = 1> (n1, layers_0_up)\n    r = Mul (u, w)",
        ),
        END,
    ),
    "a gate on the stream": (
        BODY,
        END.replace(
            "q = GatherND <batch_dims = 1> (x2, picked)",
            "gate = Sigmoid (x2) x3 = Mul (gate, x2) q = GatherND <batch_dims = 1> (x3, picked)",
        ),
    ),
    "two other readers": (
        BODY,
        END.replace(
            "x2 = Add (x1, e)",
            "w = com.microsoft.FusedMatMul <transB = 1> (n1, head) x2 = Add (x1, e)",
        )
        .replace("y =", "y0 =")
        .replace("}", "w0 = GatherND <batch_dims = 1> (w, picked)y = Add (w0, y0) }"),
    ),
}


def graph(body: str = BODY, end: str = END) -> ir.Model:
    weights = {name.replace(".", "_"): weight for name, weight in WEIGHTS.items()}
    model = parsed(HEADER + body + end, **weights)
    for name in WEIGHTS:
        value = model.graph.initializers.pop(name.replace(".", "_"))
        value.name = name
        model.graph.initializers.add(value)
    for node in model.graph:  # onnx infers nothing after operators that it does not know
        for out in node.outputs:
            if node.op_type == "SkipSimplifiedLayerNormalization" or out.name in STREAM:
                out.shape, out.type = ir.Shape([1, "s", 12]), ir.TensorType(ir.DataType.FLOAT)
            if out.name in ("m", "v"):
                out.name = ""
    return model


def logits(model: ir.Model) -> np.ndarray:
    return run(model, WEIGHTS, ids=IDS, picked=PICKED)[0]


def test_a_rotated_stream_computes_the_same() -> None:
    model = graph()
    before = logits(model)
    renamed = rotate_stream(model.graph, NAMES)
    np.testing.assert_allclose(logits(model), before, rtol=0, atol=2e-5)
    assert renamed.keys() == NAMES | {"layers.0.bias"}
    assert all("rotated" in name for name in renamed.values())
    # g2 is after the rotation back
    assert set(renamed.values()) | {"table", "head", "g2"} < set(model.graph.initializers)
    assert {"g0", "g1", *NAMES}.isdisjoint(model.graph.initializers)
    assert operators(model).count("MatMul") == 4
    assert rotate_stream(graph().graph, NAMES) == renamed


def test_large_channels_of_the_stream_are_spread() -> None:
    model = graph()
    wide = WEIGHTS | {"table": WEIGHTS["table"] * torch.tensor([50.0, *[1.0] * 11])}
    rotate_stream(model.graph, NAMES)
    norm = next(node for node in model.graph if node.op_type == "RMSNormalization")
    model.graph.outputs.append(norm.outputs[0])
    normed = run(model, wide, ids=IDS, picked=PICKED)[1]
    assert np.abs(normed).max() < 2.5  # sqrt(12) = 3.5 before


@pytest.mark.parametrize("case", KEPT)
def test_other_graphs_stay(case: str) -> None:
    model = graph(*KEPT[case])
    before = operators(model)
    assert rotate_stream(model.graph, NAMES) == {}
    assert operators(model) == before
