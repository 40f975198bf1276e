import onnx_ir as ir
import pytest
from tests.export.passes.graphs import assert_kept, normal, operators, parsed, rewritten

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
AGAIN = "to2 = Constant <value_ints = [0, 0, 4, 2]> () last = Reshape (heads, to2)"

Axes = list[int | str | None]

SPLIT: Axes = ["batch", "sequence", 2, 4]


def graph(nodes: str, out: str, **shapes: Axes) -> ir.Model:
    """A graph with named axes, as in a trace."""
    model = parsed(TEXT.replace("NODES", nodes).replace("OUT", out))
    for node in model.graph:
        for value in node.outputs:
            if value.name in shapes:
                value.shape = ir.Shape(shapes[value.name])
    return model


def test_views_there_and_back_are_dropped() -> None:
    views = graph(
        f"{HEADS} {BACK}", "batch, sequence, 8", heads=SPLIT, last=["batch", "sequence", 8]
    )
    assert operators(rewritten(DropReshapes(), views, x=X)) == ["Neg"]


def test_a_view_gets_its_shape_as_numbers() -> None:
    view = graph(HEADS.replace("heads", "last"), "batch, sequence, 2, 4", last=SPLIT)
    constant, reshape, _ = rewritten(DropReshapes(), view, x=X).graph
    assert constant.attributes.get_tensor("value").numpy().tolist() == [0, 0, 2, 4]
    assert reshape.inputs[1] is constant.outputs[0]


def test_of_two_views_the_second_is_left() -> None:
    views = graph(
        f"{HEADS} {AGAIN}",
        "batch, sequence, 4, 2",
        heads=SPLIT,
        last=["batch", "sequence", 4, 2],
    )
    assert operators(rewritten(DropReshapes(), views, x=X)) == ["Constant", "Reshape", "Neg"]


@pytest.mark.parametrize("shape", [[None, None, 2, 4], ["other", "names", 2, 4]])
def test_a_view_with_unknown_or_two_other_axes_stays(shape: Axes) -> None:
    assert_kept(DropReshapes(), graph(HEADS.replace("heads", "last"), "b, s, 2, 4", last=shape))
