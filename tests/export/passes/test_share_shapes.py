import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]

from ortolan.export.passes import ShareShapes

MODEL = """
    <ir_version: 10, opset_import: ["" : 24]>
    g (float[batch, length, 3] a, int64[batch, length] b, float[batch, other] c, float d)
        => (int64[1] l, int64[1] m, int64[1] o, int64[2] p, int64[1] w, int64[k] r)
        <float[batch, length, 3] n, float[?, length] u>
    {
        n = Neg (a)
        l = Shape <start = 1, end = 2> (a)
        m = Shape <start = 1, end = 2> (n)
        o = Shape <start = 1> (c)
        p = Shape (b)
        w = Shape <start = -1> (n)
        r = Shape (d)
    }
"""


def test_shapes_of_equal_names_are_read_once() -> None:
    model = ir.from_proto(onnx.parser.parse_model(MODEL))
    assert ShareShapes()(model).modified
    shapes = [node for node in model.graph if node.op_type == "Shape"]
    # The length, another length, both axes, a width that is known, no axes at all.
    assert len(shapes) == 5
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    inputs = {
        name: np.zeros(size, np.int64 if name == "b" else np.float32)
        for name, size in {"a": (2, 5, 3), "b": (2, 5), "c": (2, 7), "d": ()}.items()
    }
    sizes = [list(size) for size in session.run(None, inputs)]
    assert sizes == [[5], [5], [7], [2, 5], [3], []]
    assert not ShareShapes()(model).modified


def test_axes_without_names_are_read_where_they_are() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model("""
            <ir_version: 10, opset_import: ["" : 24]>
            g (float[n] a, float[n] b) => (int64[1] p, int64[1] q) { p = Shape (a) q = Shape (b) }
        """)
    )
    for value in model.graph.inputs:
        value.shape = ir.Shape([None])
    assert not ShareShapes()(model).modified
