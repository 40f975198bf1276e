"""Graph changes of random size that are known to be expensive or to crash."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper
from tests.hostile.documents import logarithmic
from tests.nonsense import INTEGERS


def _crowd(random: Random, model: ModelProto) -> str:
    count, value = logarithmic(random, 49_000), random.choice(_float_values(model))
    operator = random.choice(["Identity", "Identity", "Tanh", "Neg"])
    _append(
        random, model, [helper.make_node(operator, [value], [f"crowd.{i}"]) for i in range(count)]
    )
    return f"{count} {operator} of {value}"


def _doubling(random: Random, model: ModelProto) -> str:
    """Double a constant or a value many times."""
    count, value = random.randint(2, 30), random.choice(_float_values(model))
    if random.random() < 0.5:
        value = _constant(model, "grain", np.ones(1024, np.float32))
    names = [value, *(f"chain.{i}" for i in range(count))]
    nodes = [
        helper.make_node("Concat", [before, before], [after], axis=0)
        for before, after in pairwise(names)
    ]
    _append(random, model, nodes)
    return f"{count} Concat of {value}"


def _growing(random: Random, model: ModelProto) -> str:
    size = 2 ** random.randint(8, 40)
    one = _constant(model, "one", np.ones(1, np.float32))
    shape = _constant(model, "huge", np.array([size], np.int64))
    start, step = (_constant(model, f"at{i}", np.array(i, np.int64)) for i in range(2))
    end = _constant(model, "end", np.array(size, np.int64))
    pads = _constant(model, "pads", np.array([0, size], np.int64))
    scales = _constant(model, "scales", np.array([size], np.float32))
    node = random.choice(
        [
            helper.make_node("Expand", [one, shape], ["grown"]),
            helper.make_node("Tile", [one, shape], ["grown"]),
            helper.make_node("ConstantOfShape", [shape], ["grown"]),
            helper.make_node("Range", [start, end, step], ["grown"]),
            helper.make_node("Pad", [one, pads], ["grown"]),
            helper.make_node("Resize", [one, "", scales], ["grown"], mode="nearest"),
            helper.make_node("EyeLike", [one], ["grown"]),
            helper.make_node("OneHot", [start, end, pads], ["grown"]),
        ]
    )
    _append(random, model, [node])
    return f"{node.op_type} to {size}"


def _folded(random: Random, model: ModelProto) -> str:
    """Add an operator over constants, which is computed at load."""
    kind = random.choice([np.int64, np.int32, np.int8, np.float32])
    with np.errstate(all="ignore"):
        values = [np.array(random.choices(INTEGERS, k=2)).astype(kind) for _ in range(2)]
    names = [_constant(model, f"folded.{i}", value) for i, value in enumerate(values)]
    operators = ("Div", "Mod", "Pow", "BitShift", "Mul", "MatMulInteger", "Gather", "Slice", "Pad")
    node = helper.make_node(random.choice(operators), names, ["folded"])
    _append(random, model, [node])
    return f"{node.op_type} of {[value.tolist() for value in values]}"


def _constant(model: ModelProto, name: str, value: np.ndarray) -> str:
    name = f"{name}.{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def _float_values(model: ModelProto) -> list[str]:
    return [name for node in model.graph.node for name in node.output if name] or ["nothing"]


def _append(random: Random, model: ModelProto, nodes: list[NodeProto]) -> None:
    """Add nodes to a graph, read by its output, by another node, or by nothing."""
    model.graph.node.extend(nodes)
    readers, last = [node for node in model.graph.node if node.input], nodes[-1].output[0]
    match random.randrange(4):
        case 0:
            pass
        case 1:
            reader = random.choice(readers)
            reader.input[random.randrange(len(reader.input))] = last
        case _:
            join(model, last)


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


Trap = Callable[[Random, ModelProto], str]

TRAPS: tuple[tuple[Trap, int], ...] = ((_crowd, 1), (_doubling, 2), (_growing, 3), (_folded, 3))
"""Changes and their weights."""
