"""Payments inserted into a parsed template.

They stand in each body that may repeat, and around operations that Jinja has no hook for:
`~`, comparisons, slices and keys.
"""

from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from ortolan.runtime.jinja.sandbox import ITEM, refused


class Payments(NodeTransformer):
    """Inserts payments into a parsed template."""

    def __init__(self) -> None:
        self._nodes = 0

    def visit(self, node: nodes.Node, *args: Any, **named: Any) -> Any:
        self._nodes += 1
        return super().visit(node, *args, **named)

    def _body(self, node: Any) -> Any:
        before = self._nodes
        self.generic_visit(node)
        tick = _own("pay", nodes.Const(ITEM * (1 + self._nodes - before)))
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        if getattr(node, "test", None) is not None:
            node.test = nodes.And(tick, node.test)
        return node

    def _refused(self, node: nodes.Node) -> None:
        name = type(node).__name__.lower()
        raise refused(
            f"Chat templates may not use the statement {name!r}, which needs other templates."
        )

    visit_For = visit_Macro = visit_CallBlock = _body
    visit_Block = visit_Extends = visit_Include = visit_Import = visit_FromImport = _refused

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _own("joined", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if any(operand.op in {"in", "notin"} for operand in node.ops):
            node.expr = _compared(node.expr)
        return node

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _compared(node.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = _compared(node.key)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _own("paid", node) if isinstance(node.arg, nodes.Slice) else node


def _own(method: str, *args: nodes.Expr) -> nodes.Call:
    """Return a call of a method of the environment."""
    return nodes.Call(nodes.EnvironmentAttribute(method), [*args], [], None, None)


def _compared(node: nodes.Expr) -> nodes.Expr:
    constant = all(isinstance(item, nodes.Const) for item in getattr(node, "items", [node]))
    return node if constant else _own("compared", node)
