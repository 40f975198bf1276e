"""Helpers for the values of a graph: inputs, outputs and initializers of its nodes."""

from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Replace `old` by `new` in all readers; `new` takes over its name, shape and type."""
    name, new.shape, new.type = old.name, old.shape, old.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    new.name = name


def add_initializer(
    graph: ir.Graph, name: str, dtype: ir.DataType, shape: tuple[int, ...]
) -> ir.Value:
    """The initializer of this name; created without data if it is missing."""
    if name not in graph.initializers:
        graph.initializers.add(
            ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
        )
    return graph.initializers[name]


def add_constant(graph: ir.Graph, name: str, values: NDArray[Any]) -> ir.Value:
    """The initializer of this name, with its data."""
    tensor = ir.tensor(values, name=name)
    value = add_initializer(graph, name, tensor.dtype, values.shape)
    value.const_value = tensor
    return value


def share_initializer(graph: ir.Graph, name: str, original: str) -> None:
    """Let all readers of initializer `name`, if it exists, read `original` instead."""
    if name not in graph.initializers:
        return
    value = graph.initializers.pop(name)
    if original not in graph.initializers:
        value.name = original
        graph.initializers.add(value)
        return
    value.replace_all_uses_with(graph.initializers[original])


def static_shape(value: ir.Value) -> tuple[int, ...]:
    """Shape of an initializer."""
    if value.shape is None:
        raise ValueError(f"{value.name}: this initializer has no shape")
    return tuple(value.shape.numpy())


def type_of(value: ir.Value) -> ir.DataType:
    """Element type of an initializer."""
    if value.dtype is None:
        raise ValueError(f"{value.name}: this initializer has no type")
    return value.dtype


def number(value: ir.Value | None) -> float | None:
    """The number in a constant of one element; None for any other value."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None or tensor.size != 1 else float(tensor.numpy().item())


def producer(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """The node that computes a value, if it is one of these operators."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in operators else None


def only_user(value: ir.Value, *operators: str) -> ir.Node | None:
    """The only node that reads a value, if it is one of these operators (any if none are named)."""
    users = {use.node for use in value.uses()}
    if len(users) != 1 or value.is_graph_output():
        return None
    (node,) = users
    return node if node.op_type in operators or not operators else None


def is_weight(value: ir.Value, *, axes: int | None = None) -> bool:
    """Whether a value is an initializer without data, of this number of axes if set."""
    if not value.is_initializer() or value.const_value is not None:
        return False
    return axes is None or len(static_shape(value)) == axes


def name_of(value: ir.Value) -> str:
    """Name of a value that must have one."""
    if value.name is None:
        raise ValueError(f"{value}: this value has no name")
    return value.name
