"""Nodes that read a low-bit weight: a product with it, or a look-up of its rows."""

from collections.abc import Mapping

import onnx_ir as ir

from ortolan.export.passes.nodes import NodePass, replace_node
from ortolan.export.scheme import Scheme


class QuantizeReaders(NodePass):
    """Replace every reader of a weight of a plan: FusedMatMul(x, w) and Gather(w, ids).

    A weight that loses its last reader is dropped.
    """

    operators = ("FusedMatMul", "Gather")

    def __init__(self, plan: Mapping[str, Scheme]) -> None:
        self.plan = plan

    def _rewrite(self, graph: ir.Graph, node: ir.Node) -> bool:
        is_product = node.op_type == "FusedMatMul"
        weight = node.inputs[1 if is_product else 0]
        name = None if weight is None else weight.name
        if weight is None or name is None or name not in self.plan:
            return False
        lower = self._product if is_product else self._look_up
        replace_node(graph, node, lower(graph, node, weight, self.plan[name]))
        if not weight.uses():
            del graph.initializers[name]
        return True

    def _product(
        self, graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme
    ) -> ir.Value:
        """Insert what replaces a product, and return its result."""
        raise NotImplementedError

    def _look_up(
        self, graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme
    ) -> ir.Value:
        """Insert what replaces a look-up, and return its result."""
        raise NotImplementedError
