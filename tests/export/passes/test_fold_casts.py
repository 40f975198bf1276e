import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]
import pytest

from ortolan.export.passes import FoldCasts


def graph(body: str) -> ir.Model:
    return ir.from_proto(
        onnx.parser.parse_model(f"""
            <ir_version: 10, opset_import: ["" : 24]>
            g (int64[n] x, float[n] f) => (float[n] y) {{ {body} }}
        """)
    )


FOLDED = {
    "cast": "one = Constant <value_int = 3> () c = Cast <to = 1> (one) y = Mul (f, c)",
    "like": "one = Constant <value_int = 3> () c = CastLike (one, f) y = Mul (f, c)",
    "vector": "one = Constant <value_ints = [3]> () c = CastLike (one, f) y = Mul (f, c)",
}

KEPT = {
    "no constant": "c = Cast <to = 1> (x) y = Mul (f, c)",
    "unknown type": "l = Mul (f, f) o = Constant <value_int = 3> () y = CastLike (o, l)",
    "long": f"o = Constant <value_ints = [{', '.join('123456789')}]> () y = Cast <to = 1> (o)",
}


def run(model: ir.Model) -> np.ndarray:
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    values = np.arange(4)
    (y,) = session.run(None, {"x": values, "f": values.astype("f")})
    return np.asarray(y)


@pytest.mark.parametrize("name", FOLDED)
def test_constant_takes_the_type_of_its_readers(name: str) -> None:
    model = graph(FOLDED[name])
    before = run(model)
    assert FoldCasts()(model).modified
    assert {node.op_type for node in model.graph} == {"Constant", "Mul"}
    np.testing.assert_array_equal(run(model), before)
    assert before[3] == 9
    assert not FoldCasts()(model).modified


@pytest.mark.parametrize("name", KEPT)
def test_other_casts_stay(name: str) -> None:
    model = graph(KEPT[name])
    nodes = [node.op_type for node in model.graph]
    assert not FoldCasts()(model).modified
    assert [node.op_type for node in model.graph] == nodes
