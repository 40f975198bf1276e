"""Nodes that are known to be expensive or to crash, and ways to add them to a graph."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper
from tests.hostile.documents import logarithmic
from tests.nonsense import INTEGERS

Array = NDArray[Any]

Trap = Callable[[ModelProto], list[NodeProto]]
"""Returns nodes for a graph, to which it adds constants. The last node has the result."""

ONE = np.ones(1, np.float32)

GROWN: Mapping[str, Callable[[int], tuple[Array, ...]]] = {
    "Expand": lambda size: (ONE, np.array([size])),
    "Tile": lambda size: (ONE, np.array([size])),
    "ConstantOfShape": lambda size: (np.array([size]),),
    "Range": lambda size: (np.array(0), np.array(size), np.array(1)),
    "Pad": lambda size: (ONE, np.array([0, size])),
    "Resize": lambda size: (ONE, ONE, np.array([size], np.float32)),
    "OneHot": lambda size: (np.array(0), np.array(size), np.array([0, size])),
}
"""Inputs with which an operator writes so many numbers."""


def operator(op_type: str, *inputs: Array, domain: str = "", **attributes: Any) -> Trap:
    """An operator over constants, which is computed at load."""

    def nodes(model: ModelProto) -> list[NodeProto]:
        names = [constant(model, value) for value in inputs]
        return [helper.make_node(op_type, names, ["trap"], domain=domain, **attributes)]

    return nodes


def grown(op_type: str, size: int) -> Trap:
    return operator(op_type, *GROWN[op_type](size))


def readers(count: int, op_type: str = "Identity") -> Trap:
    """Many readers of one value."""
    return lambda model: [
        helper.make_node(op_type, [value_of(model)], [f"trap.{place}"]) for place in range(count)
    ]


def doubled(times: int, *, of_constant: bool = True) -> Trap:
    """Chain `Concat(x, x)` over a constant of 4 KiB, or over a value of a request."""

    def nodes(model: ModelProto) -> list[NodeProto]:
        grain = np.ones(1024, np.float32)
        first = constant(model, grain) if of_constant else value_of(model)
        names = [first, *(f"trap.{place}" for place in range(times))]
        return [helper.make_node("Concat", [a, a], [b], axis=0) for a, b in pairwise(names)]

    return nodes


def constant(model: ModelProto, value: Array) -> str:
    """Add a constant to a graph; return its name."""
    name = f"constant.{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def value_of(model: ModelProto) -> str:
    """A value that depends on a request."""
    return next((node.output[0] for node in model.graph.node if node.output), "nothing")


def join(model: ModelProto, value: str) -> None:
    """Add the maximum of a value to the first output of a graph."""
    output = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["alone" if name == output else name for name in node.output]
    axes = numpy_helper.from_array(np.zeros(0, np.int64), "joined.axes")  # empty means all
    model.graph.initializer.append(axes)
    nodes = [
        helper.make_node("Cast", [value], ["joined.float"], to=1),
        helper.make_node("ReduceMax", ["joined.float", "joined.axes"], ["joined"], keepdims=0),
        helper.make_node("Add", ["alone", "joined"], [output]),
    ]
    model.graph.node.extend(nodes)


def set_trap(random: Random, model: ModelProto) -> str:
    """Add a trap of random size, read by the output, by another node, or by nothing."""
    trap = random.choices(*zip(*_TRAPS, strict=True))[0](random)
    nodes = trap(model)
    model.graph.node.extend(nodes)
    last = nodes[-1].output[0]
    match random.randrange(4):
        case 0:
            pass
        case 1:
            reader = random.choice([node for node in model.graph.node if node.input])
            reader.input[random.randrange(len(reader.input))] = last
        case _:
            join(model, last)
    return f"{len(nodes)} {nodes[-1].op_type}"


def _folded(random: Random) -> Trap:
    kind = random.choice([np.int64, np.int32, np.int8, np.float32])
    with np.errstate(all="ignore"):
        values = [np.array(random.choices(INTEGERS, k=2)).astype(kind) for _ in range(2)]
    names = ("Div", "Mod", "Pow", "BitShift", "Mul", "MatMulInteger", "Gather", "Slice", "Pad")
    return operator(random.choice(names), *values)


_TRAPS: tuple[tuple[Callable[[Random], Trap], int], ...] = (
    (lambda r: readers(logarithmic(r, 49_000), r.choice(["Identity", "Tanh", "Neg"])), 1),
    (lambda r: doubled(r.randint(2, 30), of_constant=r.random() < 0.5), 2),
    (lambda r: grown(r.choice(list(GROWN)), 2 ** r.randint(8, 40)), 3),
    (_folded, 3),
)
"""Traps and their weights."""
