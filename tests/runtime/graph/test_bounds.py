"""Bounds on what a graph alone can cost."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from ortolan.runtime import limits
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph.rules import read

Given = dict[str, Any]


def graph(nodes: Sequence[NodeProto], dtype: int = TensorProto.FLOAT, **constants: Any) -> bytes:
    """A graph from `x` to `y`. Constants are arrays in it, or shapes of external weights."""
    initializers = []
    for name, value in constants.items():
        if isinstance(value, tuple):
            weight = TensorProto(name=name, dims=value, data_type=dtype)
            weight.data_location = TensorProto.EXTERNAL
            weight.external_data.add(key="location", value="weights.bin")
            initializers.append(weight)
        else:
            initializers.append(numpy_helper.from_array(np.asarray(value), name))
    x = helper.make_tensor_value_info("x", dtype, ["n"])
    y = helper.make_tensor_value_info("y", dtype, None)
    whole = helper.make_graph(nodes, "graph", [x], [y], initializers)
    return bytes(helper.make_model(whole).SerializeToString())


def node(operator: str, takes: str, gives: str = "y", **attributes: Any) -> NodeProto:
    return helper.make_node(operator, takes.split(), gives.split(), **attributes)


def refused(data: bytes, part: str) -> None:
    with pytest.raises(GraphError) as caught:
        read(data)
    assert part in str(caught.value)


def readers(count: int) -> bytes:
    return graph([node("Abs", "x", f"y{index}") for index in range(count)])


def test_readers_of_one_value_are_bounded() -> None:
    read(readers(limits.MAX_READERS))
    refused(readers(limits.MAX_READERS + 1), f"at most {limits.MAX_READERS} readers of 'x'")


@pytest.mark.parametrize("operator", ["Div", "Mod"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8, np.uint8])
def test_integers_may_only_be_divided_by_harmless_constants(operator: str, dtype: Any) -> None:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    divided = [node(operator, "x by")]
    small = dtype in (np.int8, np.uint8)
    if not small:
        read(graph(divided, number, by=dtype(7)))
        read(graph(divided, number, by=np.array([7, -2], dtype)))
    refused(graph(divided, number, by=dtype(0)), "other than 0 and -1")
    if dtype is not np.uint8:
        refused(graph(divided, number, by=np.array([7, -1], dtype)), "other than 0 and -1")
    refused(graph([node(operator, "x x")], number), "computed ones")


def test_floats_may_be_divided_by_anything() -> None:
    read(graph([node("Div", "x x")]))
    read(graph([node("Div", "x by")], by=np.float32(-1)))


MOST = limits.MAX_ASKED


@pytest.mark.parametrize(
    ("nodes", "most", "over"),
    [
        ([node("Expand", "x sizes")], [MOST], [MOST + 1]),
        ([node("Expand", "x sizes")], [2, -1, MOST // 2], [2, -1, MOST // 2 + 1]),
        ([node("ConstantOfShape", "sizes")], [MOST], [MOST + 1]),
        ([node("Tile", "x sizes")], [MOST], [MOST + 1]),
        (
            [
                node("Shape", "x", "s"),
                node("Concat", "s sizes", "c", axis=0),
                node("Expand", "x c"),
            ],
            [MOST],
            [MOST + 1],
        ),
    ],
    ids=["expand", "product", "constant", "tile", "concatenated"],
)
def test_sizes_from_constants_are_bounded(
    nodes: list[NodeProto], most: list[int], over: list[int]
) -> None:
    read(graph(nodes, sizes=np.array(most)))
    refused(graph(nodes, sizes=np.array(over)), f"at most {MOST} elements")


@pytest.mark.parametrize("step", [1, -3])
def test_the_length_of_a_range_is_bounded(step: int) -> None:
    def ends(count: int) -> Given:
        return {"a": np.int64(5), "b": np.int64(5 + step * count), "c": np.int64(step)}

    nodes = [node("Range", "a b c")]
    read(graph(nodes, **ends(MOST)))
    refused(graph(nodes, **ends(MOST + 1)), f"at most {MOST} elements")


def doublings(count: int) -> list[NodeProto]:
    return [node("Concat", f"v{index} v{index}", f"v{index + 1}", axis=0) for index in range(count)]


def test_work_at_load_is_bounded() -> None:
    # 2^16 * (2 + 4 + ... + 2^9) is just below 2^26
    read(graph(doublings(9), v0=(1 << 16,)))
    refused(graph(doublings(9), v0=(1 << 17,)), "elements computed from constants")
    refused(graph(doublings(4), v0=(1 << 30,)), "elements computed from constants")


def test_copies_of_a_value_that_are_joined_are_bounded() -> None:
    start = node("Abs", "x", "v0")
    read(graph([start, *doublings(9)]))
    refused(graph([start, *doublings(10)]), "at most 512 values joined into one")
    between = [node("Neg", "v9", "w"), node("Concat", "w v9", "z", axis=0)]
    refused(graph([start, *doublings(9), *between]), "at most 512 values joined into one")


def test_parts_of_a_value_may_be_joined_repeatedly() -> None:
    layers = []
    for index in range(100):
        halves = node("Split", f"v{index}", f"a{index} b{index}", axis=0)
        turned = node("Concat", f"b{index} a{index}", f"v{index + 1}", axis=0)
        layers += [halves, turned]
    read(graph([node("Abs", "x", "v0"), *layers]))


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("Mul", "a b", "c"), node("Add", "c x")], {"a": (1 << 26,), "b": np.float32(2)}),
        ([node("Add", "a b", "c"), node("Add", "c x")], {"a": (1 << 13, 1 << 13), "b": (1 << 13,)}),
        ([node("Gather", "a i", "c"), node("Add", "c x")], {"a": (1 << 20, 64), "i": np.arange(9)}),
        ([node("Reshape", "a i", "c"), node("Add", "c x")], {"a": (1 << 26,), "i": np.array([-1])}),
        (
            [node("Split", "a", "b c"), node("Concat", "c b", "d", axis=0), node("Add", "d x")],
            {"a": (1 << 28,)},
        ),
        ([node("Neg", "a", "c"), node("Exp", "c", "d"), node("Add", "d x")], {"a": (1 << 26,)}),
    ],
    ids=["scaled", "with a bias", "looked up", "reshaped", "cut and joined", "two steps"],
)
def test_constant_expressions_of_exports_are_accepted(
    nodes: list[NodeProto], constants: Given
) -> None:
    read(graph(nodes, **constants))


def test_computed_sizes_are_rejected_at_load() -> None:
    nodes = [node("Add", "sizes sizes", "twice"), node("ConstantOfShape", "twice", "z")]
    refused(graph(nodes, sizes=np.array([1 << 40])), "computed ones")


@pytest.mark.parametrize(
    "operator",
    ["Div", "Mod", "Expand", "OneHot", "Tile", "Pad", "Range", "Gather", "Concat", "Add"],
)
@pytest.mark.parametrize("takes", ["", "a", "x", "a a"])
def test_nodes_without_inputs_are_read_or_rejected(operator: str, takes: str) -> None:
    with suppress(GraphError):
        read(graph([node(operator, takes)], a=np.array([2])))


def test_the_outer_product_of_constants_is_counted() -> None:
    nodes = [node("Mul", "a b", "c"), node("Add", "c x")]
    refused(graph(nodes, a=(1 << 20, 1), b=(1 << 20,)), "elements computed from constants")
