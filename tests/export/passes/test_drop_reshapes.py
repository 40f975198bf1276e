import numpy as np
import onnx_ir as ir
import pytest
from tests.export.passes.graphs import normal, parsed, run

from ortolan.export.passes.drop_reshapes import DropReshapes

X = normal(2, 3, 8).numpy()

TEXT = """
g (float[batch, sequence, 8] x) => (float[OUT] y) {
    sizes = Shape <start = 0, end = 2> (x)
    NODES
    y = Neg (last)
}
"""

HEADS = (
    "four = Constant <value_ints = [2, 4]> () to = Concat <axis = 0> (sizes, four) "
    "heads = Reshape (x, to)"
)
BACK = (
    "eight = Constant <value_ints = [-1]> () flat = Concat <axis = 0> (sizes, eight) "
    "last = Reshape (heads, flat)"
)


def graph(nodes: str, out: str, **shapes: list[int | str]) -> ir.Model:
    """Views whose shapes are known by names, as in a trace."""
    model = parsed(TEXT.replace("NODES", nodes).replace("OUT", out))
    for node in model.graph:
        for value in node.outputs:
            if value.name in shapes:
                value.shape = ir.Shape(shapes[value.name])
    return model


def clean(model: ir.Model) -> list[ir.Node]:
    before = run(model, {}, x=X)
    assert DropReshapes()(model).modified
    ir.passes.common.RemoveUnusedNodesPass()(model)
    np.testing.assert_array_equal(run(model, {}, x=X)[0], before[0])
    assert not DropReshapes()(model).modified
    return list(model.graph)


def test_views_there_and_back_go() -> None:
    model = graph(
        f"{HEADS} {BACK}",
        "batch, sequence, 8",
        heads=["batch", "sequence", 2, 4],
        last=["batch", "sequence", 8],
    )
    assert [node.op_type for node in clean(model)] == ["Neg"]


def test_a_view_says_its_shape_in_numbers() -> None:
    model = graph(
        HEADS.replace("heads", "last"),
        "batch, sequence, 2, 4",
        last=["batch", "sequence", 2, 4],
    )
    constant, view, _ = clean(model)
    assert constant.attributes.get_tensor("value").numpy().tolist() == [0, 0, 2, 4]
    assert view.inputs[1] is constant.outputs[0]


def test_of_two_views_the_second_is_left() -> None:
    again = "to2 = Constant <value_ints = [0, 0, 4, 2]> () last = Reshape (heads, to2)"
    model = graph(
        f"{HEADS} {again}",
        "batch, sequence, 4, 2",
        heads=["batch", "sequence", 2, 4],
        last=["batch", "sequence", 4, 2],
    )
    assert [node.op_type for node in clean(model)] == ["Constant", "Reshape", "Neg"]


@pytest.mark.parametrize(
    "shape", [None, ["other", "names", 2, 4]], ids=["unknown shape", "two other axes"]
)
def test_a_view_to_what_is_not_known_stays(shape: list[int | str] | None) -> None:
    shapes = {} if shape is None else {"last": shape}
    model = graph(HEADS.replace("heads", "last"), "b, s, 2, 4", **shapes)
    for node in model.graph:
        if node.op_type == "Reshape" and shape is None:
            node.outputs[0].shape = None
    assert not DropReshapes()(model).modified
