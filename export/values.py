"""Values of a graph: what its nodes read and give, initializers included."""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Give every reader of `old` the value `new`, which takes over its name, shape and type."""
    name, new.shape, new.type = old.name, old.shape, old.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    new.name = name


def insert_constant(graph: ir.Graph, before: ir.Node, values: NDArray[np.integer]) -> ir.Value:
    """A constant, in the graph itself."""
    tensor = ir.tensor(values)
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1)
    graph.insert_before(before, node)
    return node.outputs[0]


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
    """Let every reader of one initializer, if it is there, read another."""
    if name not in graph.initializers:
        return
    value = graph.initializers.pop(name)
    if original not in graph.initializers:
        value.name = original
        graph.initializers.add(value)
        return
    value.replace_all_uses_with(graph.initializers[original])


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


def number(value: ir.Value | None) -> float | None:
    """The number that a constant of one element is; None for any other value."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None or tensor.size != 1 else float(tensor.numpy().item())


def producer(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """The node that gives a value, if it is one of these."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in operators else None


def only_user(value: ir.Value, *operators: str) -> ir.Node | None:
    """The one node that reads a value, if it is one of these, or any where none are given."""
    users = {use.node for use in value.uses()}
    if len(users) != 1 or value.is_graph_output():
        return None
    (node,) = users
    return node if node.op_type in operators or not operators else None


def is_weight(value: ir.Value, *, axes: int | None = None) -> bool:
    """Whether a value is an initializer whose data is elsewhere, with so many axes if given."""
    if not value.is_initializer() or value.const_value is not None:
        return False
    return axes is None or len(static_shape(value)) == axes


def name_of(value: ir.Value) -> str:
    """The name of a value that has one."""
    if value.name is None:
        raise ValueError(f"{value}: expected a value with a name, got none")
    return value.name
