"""Small changes of a graph that several passes make."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortolan.export.quantize.blocks import Scheme

Lower = Callable[[ir.Graph, ir.Node, ir.Value, Scheme], ir.Value]
"""Inserts what replaces a node that reads a weight, and gives its result."""


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Give every reader of `old` the value `new`, which takes over its name, shape and type."""
    name, new.shape, new.type = old.name, old.shape, old.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    new.name = name


def add_initializer(
    graph: ir.Graph, name: str, dtype: ir.DataType, shape: tuple[int, ...]
) -> ir.Value:
    """The initializer of that name, made without data if it is not there yet."""
    if name not in graph.initializers:
        graph.initializers.add(
            ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
        )
    return graph.initializers[name]


def share_initializer(graph: ir.Graph, name: str, original: str) -> None:
    """Let every reader of one initializer read another, if there is the first."""
    if name not in graph.initializers:
        return
    value = graph.initializers.pop(name)
    if original not in graph.initializers:
        value.name = original
        graph.initializers.add(value)
        return
    value.replace_all_uses_with(graph.initializers[original])


def insert_constant(graph: ir.Graph, before: ir.Node, values: NDArray[np.integer]) -> ir.Value:
    """A constant, in the graph itself."""
    tensor = ir.tensor(values)
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1)
    graph.insert_before(before, node)
    return node.outputs[0]


def static_shape(value: ir.Value) -> tuple[int, ...]:
    """The shape of an initializer."""
    if value.shape is None:
        raise ValueError(f"{value.name}: expected an initializer with a shape, got none")
    return tuple(value.shape.numpy())


def type_of(value: ir.Value) -> ir.DataType:
    """The type of the elements of an initializer."""
    if value.dtype is None:
        raise ValueError(f"{value.name}: expected an initializer with a type, got none")
    return value.dtype


def lower_readers(
    graph: ir.Graph, plan: Mapping[str, Scheme], *, product: Lower, look_up: Lower
) -> bool:
    """Replace every node that multiplies with, or looks up rows of, a weight of a plan.

    Args:
        graph: changed in place; weights that nothing reads any more are dropped.
        plan: the scheme of each weight.
        product: for FusedMatMul(x, w).
        look_up: for Gather(w, ids).

    Returns:
        Whether there was such a node.
    """
    modified = False
    for node in list(graph):
        if node.op_type == "FusedMatMul":
            weight, lower = node.inputs[1], product
        elif node.op_type == "Gather":
            weight, lower = node.inputs[0], look_up
        else:
            continue
        name = weight.name if weight is not None else None
        if weight is None or name is None or name not in plan:
            continue
        replace_value(node.outputs[0], lower(graph, node, weight, plan[name]))
        graph.remove(node, safe=True)
        if not weight.uses():
            del graph.initializers[name]
        modified = True
    return modified
