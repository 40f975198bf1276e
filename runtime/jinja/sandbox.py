"""Jinja's sandbox, with a budget.

The sandbox keeps a template from what Python objects reach, not from taking all time or memory. So
the parsed template gets a payment in each body that may run often, and around what else Jinja lets
nobody intercept: `~`, comparisons, slices and keys. The environment pays for the rest.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jinja2 import Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from ortolan.runtime.errors import ChatTemplateError
from ortolan.runtime.jinja.budget import Budget
from ortolan.runtime.jinja.payments import METHODS, filters, pay_method, pay_operator, tests

__all__ = ["Sandbox", "namespace", "paid"]

NODES_PER_STEP = 4
"""Names, constants and the like; what can take longer pays for itself."""

_OF_JINJA = frozenset(["_block_vars", "_loop_vars"])
"""Arguments that compiled templates add."""


class _Generation(Extension):
    """`{% generation %}`, which marks the answers for training."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Scope:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@pass_context
def _finalized(context: Context, value: Any) -> str:
    return context.environment.written(value)  # type: ignore[attr-defined, no-any-return]


class Sandbox(ImmutableSandboxedEnvironment):
    """What templates are compiled and rendered in, as in transformers.

    Attributes:
        budget: of one rendering.
        functions: that a template may call, besides its macros and methods of its values.
    """

    budget: Budget
    functions: Sequence[Any] = ()
    intercepted_binops = frozenset(["+", "-", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, LoopControlExtension],
            finalize=_finalized,
            optimized=False,  # it would compute what is constant, before anybody pays
        )
        self.filters = filters()
        self.tests = tests()
        self.globals = {}

    def rendering(self, budget: Budget, functions: Sequence[Any]) -> "Sandbox":
        """This one, for one rendering."""
        twin = copy.copy(self)
        twin.budget, twin.functions = budget, functions
        return twin

    # --- what Jinja asks an environment for -------------------------------------------------------

    def call(self, context: Context, called: Any, /, *args: Any, **named: Any) -> Any:
        """Call what may be called."""
        if getattr(called, "__self__", None) is self:  # from `paid`
            return called(*args)
        self.budget.step(1 + len(args) + len(named))
        if isinstance(called, Macro | LoopContext | Undefined):
            return super().call(context, called, *args, **named)
        method = getattr(called, "__wrapped__", called)  # Jinja wraps `format`
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        args = tuple([*each] if isinstance(each, Iterator) else each for each in args)
        own = {key: each for key, each in named.items() if key not in _OF_JINJA}
        if name in next((METHODS[kind] for kind in METHODS if isinstance(owner, kind)), ()):
            pay_method(self.budget, owner, name, *args, **own)
        elif isinstance(owner, LoopContext) or any(called is each for each in self.functions):
            self.budget.walk((args, own))
        else:
            raise SecurityError(f"a call of a {type(called).__name__} {name}".rstrip())
        return self.budget.made(super().call(context, called, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An arithmetic operation."""
        pay_operator(self.budget, operator, left, right)
        return self.budget.made(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """An item; its key is hashed, and written where there is no such item."""
        if not isinstance(argument, str | int):
            self.budget.walk(argument)
        return super().getitem(obj, argument)

    def concat(self, parts: Iterable[str]) -> str:
        """What a macro or a block wrote."""
        parts = [*parts]
        self.budget.text(sum(map(len, parts)))
        return "".join(parts)

    # --- what `paid` puts into a template ---------------------------------------------------------

    def ticked(self, steps: int) -> bool:
        """At the start of a body."""
        self.budget.step(steps)
        return True

    def written(self, value: Any) -> str:
        """The text that `{{ value }}` writes."""
        if isinstance(value, str):
            return value
        self.budget.walk(value)
        return str(value)

    def joined(self, *values: Any) -> str:
        """`a ~ b`."""
        return self.concat(map(self.written, values))

    def compared(self, value: Any) -> Any:
        """The right side of a comparison, which may go through all of it."""
        if isinstance(value, str | list | tuple | dict):
            self.budget.walk(value)
        return value

    def hashed(self, value: Any) -> Any:
        """A key."""
        if isinstance(value, tuple):
            self.budget.walk(value)
        return value

    def sliced(self, value: Any) -> Any:
        """A part of a string or a list."""
        return self.budget.made(value)


class _Payments(NodeTransformer):
    def __init__(self) -> None:
        self._nodes = 0

    def visit(self, node: nodes.Node, *args: Any, **named: Any) -> Any:
        self._nodes += 1
        return super().visit(node, *args, **named)

    def _body(self, node: Any) -> Any:
        before = self._nodes
        self.generic_visit(node)
        steps = 1 + (self._nodes - before) // NODES_PER_STEP
        tick = _own("ticked", nodes.Const(steps))
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        if getattr(node, "test", None) is not None:
            node.test = nodes.And(tick, node.test)
        return node

    def _refused(self, node: nodes.Node) -> None:
        raise ChatTemplateError(
            "chat template: expected one without others, got the statement "
            f"{type(node).__name__.lower()!r}. Use another template."
        )

    visit_For = visit_Macro = visit_CallBlock = _body
    visit_Block = visit_Extends = visit_Include = visit_Import = visit_FromImport = _refused

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _own("joined", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if any(operand.op in {"in", "notin"} for operand in node.ops):
            node.expr = _around("hashed", node.expr)
        return node

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _around("compared", node.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = _around("hashed", node.key)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _own("sliced", node) if isinstance(node.arg, nodes.Slice) else node


def paid(template: nodes.Template) -> nodes.Template:
    """A parsed template that pays for each body it runs, and for what no method is asked for.

    Raises:
        ChatTemplateError: it needs other templates, or blocks of them.
        RecursionError: it is nested too deeply.
    """
    made: nodes.Template = _Payments().visit(template)
    return made


def _own(method: str, *args: nodes.Expr) -> nodes.Call:
    """A call of a method of the environment."""
    return nodes.Call(nodes.EnvironmentAttribute(method), [*args], [], None, None)


def _around(method: str, node: nodes.Expr) -> nodes.Expr:
    items = node.items if isinstance(node, nodes.List | nodes.Tuple) else [node]
    constant = all(isinstance(item, nodes.Const) for item in items)
    return node if constant else _own(method, node)


class _Namespace(Namespace):
    """Without private names, by which an object passes for one of another type."""

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str) or name.startswith("_"):
            raise SecurityError(f"a namespace with {name!r:.40}")
        super().__setitem__(name, value)


def namespace(*args: Any, **named: Any) -> Namespace:
    """What scopes within a scope may assign to."""
    made = _Namespace()
    for name, value in dict(*args, **named).items():
        made[name] = value
    return made
