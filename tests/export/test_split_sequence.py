import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from ortolan.export.passes import SplitSequence

HEADER = '<ir_version: 10, opset_import: ["" : 24]>'

SPLIT = f"""
{HEADER}
g (float[2, 6] x) => (float[2, 3] y, float[2, 1] z) {{
    sizes = Constant <value_ints = [2, 1, 3]> ()
    last = Constant <value_int = -1> ()
    middle = Constant <value_int = 1> ()
    parts = SplitToSequence <axis = -1> (x, sizes)
    third = SequenceAt (parts, last)
    second = SequenceAt (parts, middle)
    y = Neg (third)
    z = Neg (second)
}}
"""

OUTPUT_IS_A_PART = f"""
{HEADER}
g (float[6] x) => (float[2] y) {{
    sizes = Constant <value_ints = [2, 4]> ()
    first = Constant <value_int = 0> ()
    parts = SplitToSequence (x, sizes)
    y = SequenceAt (parts, first)
}}
"""

KEPT = {
    "index is computed": f"""
{HEADER}
g (float[6] x, int64 index) => (float[k] y) {{
    sizes = Constant <value_ints = [2, 4]> ()
    parts = SplitToSequence (x, sizes)
    y = SequenceAt (parts, index)
}}
""",
    "sizes are computed": f"""
{HEADER}
g (float[6] x, int64[2] sizes) => (float[k] y) {{
    first = Constant <value_int = 0> ()
    parts = SplitToSequence (x, sizes)
    y = SequenceAt (parts, first)
}}
""",
    "one size for all": f"""
{HEADER}
g (float[6] x) => (float[2] y) {{
    size = Constant <value_int = 2> ()
    first = Constant <value_int = 0> ()
    parts = SplitToSequence (x, size)
    y = SequenceAt (parts, first)
}}
""",
    "no sizes": f"""
{HEADER}
g (float[6] x) => (float[1] y) {{
    first = Constant <value_int = 0> ()
    parts = SplitToSequence (x)
    y = SequenceAt (parts, first)
}}
""",
    "another reader": f"""
{HEADER}
g (float[6] x) => (float[6] y) {{
    sizes = Constant <value_ints = [2, 4]> ()
    parts = SplitToSequence (x, sizes)
    y = ConcatFromSequence <axis = 0> (parts)
}}
""",
}


def parsed(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.op_type != "Constant"]


def run(model: ModelProto, **inputs: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results: list[NDArray[np.float32]] = session.run(None, inputs)
    return results


def test_constant_sizes_and_indices_become_one_split_with_the_same_numbers() -> None:
    model = parsed(SPLIT)
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    before = run(ir.to_proto(model), x=x)
    assert SplitSequence()(model).modified
    assert sorted(operators(model)) == ["Neg", "Neg", "Split"]
    after = run(ir.to_proto(model), x=x)
    for wanted, got in zip(before, after, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_split_keeps_names_and_shapes_of_the_parts() -> None:
    model = parsed(SPLIT)
    SplitSequence()(model)
    (split,) = (node for node in model.graph if node.op_type == "Split")
    assert [split.outputs[1].name, split.outputs[2].name] == ["second", "third"]


def test_part_that_is_an_output_of_the_graph_stays_one() -> None:
    model = parsed(OUTPUT_IS_A_PART)
    assert SplitSequence()(model).modified
    assert [value.name for value in model.graph.outputs] == ["y"]
    (y,) = run(ir.to_proto(model), x=np.arange(6, dtype=np.float32))
    np.testing.assert_array_equal(y, [0, 1])


@pytest.mark.parametrize("case", KEPT)
def test_other_sequences_stay(case: str) -> None:
    model = parsed(KEPT[case])
    before = operators(model)
    assert not SplitSequence()(model).modified
    assert operators(model) == before


def test_sequence_that_is_an_output_of_the_graph_stays() -> None:
    model = parsed(OUTPUT_IS_A_PART)
    (split,) = (node for node in model.graph if node.op_type == "SplitToSequence")
    model.graph.outputs.append(split.outputs[0])
    assert not SplitSequence()(model).modified


def test_second_run_changes_nothing() -> None:
    model = parsed(SPLIT)
    SplitSequence()(model)
    before = ir.to_proto(model).SerializeToString()
    assert not SplitSequence()(model).modified
    assert ir.to_proto(model).SerializeToString() == before
