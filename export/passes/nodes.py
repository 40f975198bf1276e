"""Shared by passes: a walk over the nodes of some operators, and the insertion of new ones."""

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortolan.export.values import replace_value

CONTRIB = "com.microsoft"
"""The domain of onnxruntime's own operators."""

Axes = tuple[int | str, ...]
"""Sizes of axes, or their names where they vary."""


Rewrite = Callable[[ir.Graph, ir.Node], bool]
"""Rewrites around a node; returns whether the graph changed."""


class GraphPass(ir.passes.InPlacePass):
    """A pass that is a function of a graph, which returns whether it changed."""

    def __init__(self, function: Callable[[ir.Graph], bool]) -> None:
        self._function = function

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the graph in place."""
        return ir.passes.PassResult(model, self._function(model.graph))


def rule(*operators: str, writes_contrib: bool = False) -> Callable[[Rewrite], GraphPass]:
    """Make a function of a node the pass over these operators; see `visit`."""
    return lambda rewrite: GraphPass(
        lambda graph: visit(graph, operators, rewrite, writes_contrib=writes_contrib)
    )


def visit(
    graph: ir.Graph, operators: Container[str], rewrite: Rewrite, *, writes_contrib: bool = False
) -> bool:
    """Rewrite around every node of some operators, in the order of the graph.

    With `writes_contrib`, new nodes are of onnxruntime's own domain.
    """
    results = [rewrite(graph, node) for node in list(graph) if node.op_type in operators]
    if any(results) and writes_contrib:
        graph.opset_imports[CONTRIB] = 1
    return any(results)


Numbers = int | float | list[int] | NDArray[Any]
"""A constant: int64, or float32 for a Python float."""

Operand = ir.Value | Numbers | None
"""An input of a new node; numbers become constants."""


class Insert:
    """Inserts nodes before another one, by a method for every operator: `new.Add(x, 1)`.

    Without a node they come last.
    """

    def __init__(self, graph: ir.Graph, before: ir.Node | None = None) -> None:
        self._graph, self._before = graph, before

    def __call__(
        self, operator: str, *inputs: Operand, domain: str = "", **attributes: Any
    ) -> ir.Value:
        """Insert a node with one output, and return that."""
        return self.several(operator, 1, *inputs, domain=domain, **attributes)[0]

    def __getattr__(self, operator: str) -> Callable[..., ir.Value]:
        return partial(self, operator)

    def several(
        self, operator: str, outputs: int, *inputs: Operand, domain: str = "", **attributes: Any
    ) -> Sequence[ir.Value]:
        """Insert a node with this many outputs."""
        values = [
            operand if operand is None or isinstance(operand, ir.Value) else self.constant(operand)
            for operand in inputs
        ]
        node = ir.node(operator, values, attributes, domain=domain, num_outputs=outputs)
        if self._before is None:
            self._graph.append(node)
        else:
            self._graph.insert_before(self._before, node)
        return node.outputs

    def constant(self, numbers: Numbers) -> ir.Value:
        """Insert a constant."""
        if not isinstance(numbers, np.ndarray):
            numbers = np.array(numbers, np.float32 if isinstance(numbers, float) else np.int64)
        return self.Constant(value=ir.tensor(numbers))


def replace_node(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    """Remove a node; `value` takes over its first output."""
    replace_value(node.outputs[0], value)
    graph.remove(node, safe=True)


def axes_of(value: ir.Value | None) -> Axes | None:
    """The axes of a value, by name where they vary; None if one is unknown."""
    if value is None or value.shape is None:
        return None
    axes = [axis if isinstance(axis, int) else axis.value for axis in value.shape]
    return None if None in axes else tuple(axis for axis in axes if axis is not None)
