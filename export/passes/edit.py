"""Small changes of a graph that several passes make."""

import numpy as np
import onnx_ir as ir


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


def insert_constant(graph: ir.Graph, before: ir.Node, values: list[int]) -> ir.Value:
    """A constant int64 vector, in the graph itself."""
    tensor = ir.tensor(np.array(values, np.int64))
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1)
    graph.insert_before(before, node)
    return node.outputs[0]


def static_shape(value: ir.Value) -> tuple[int, ...]:
    """The shape of an initializer."""
    if value.shape is None:
        raise ValueError(f"{value.name}: expected an initializer with a shape, got none")
    return tuple(value.shape.numpy())
