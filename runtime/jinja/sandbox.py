"""Jinja's sandbox with a budget.

Jinja's own sandbox protects Python objects, not time or memory. So `paid` adds payments to a parsed
template: in each body that may repeat, and around operations that Jinja cannot intercept (`~`,
comparisons, slices and keys). The environment pays for everything else.
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
from ortolan.runtime.jinja.costs import METHODS, filters, pay_method, pay_operator, tests

NODES_PER_STEP = 4
"""Names, constants and the like per step; longer operations pay for themselves."""

_OF_JINJA = frozenset(["_block_vars", "_loop_vars"])
"""Arguments added by compiled templates."""


class _Generation(Extension):
    """`{% generation %}`, which marks replies for training."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Scope:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@pass_context
def _finalized(context: Context, value: Any) -> str:
    return context.environment.written(value)  # type: ignore[attr-defined, no-any-return]


class Sandbox(ImmutableSandboxedEnvironment):
    """Environment to compile and render templates, configured as in transformers.

    Attributes:
        budget: of one rendering.
        functions: functions that the template may call, in addition to macros and methods.
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
            optimized=False,  # would compute constants before anything is paid
        )
        self.filters = filters()
        self.tests = tests()
        self.globals = {}

    def rendering(self, budget: Budget, functions: Sequence[Any]) -> "Sandbox":
        """Return a copy for one rendering."""
        twin = copy.copy(self)
        twin.budget, twin.functions = budget, functions
        return twin

    # --- hooks of Jinja -------------------------------------------------------------------------

    def call(self, context: Context, called: Any, /, *args: Any, **named: Any) -> Any:
        """Call a function or method that is allowed."""
        if getattr(called, "__self__", None) is self:  # from `paid`
            return called(*args)
        self.budget.step(1 + len(args) + len(named))
        if isinstance(called, Macro | LoopContext | Undefined):
            return super().call(context, called, *args, **named)
        method = getattr(called, "__wrapped__", called)  # Jinja wraps `format`
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        args = tuple([*arg] if isinstance(arg, Iterator) else arg for arg in args)
        own = {key: value for key, value in named.items() if key not in _OF_JINJA}
        if name in next((METHODS[kind] for kind in METHODS if isinstance(owner, kind)), ()):
            pay_method(self.budget, owner, name, *args, **own)
        elif isinstance(owner, LoopContext) or any(called is known for known in self.functions):
            self.budget.walk((args, own))
        else:
            raise SecurityError(f"a call of {name or type(called).__name__}")
        return self.budget.pay_result(super().call(context, called, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an arithmetic operation."""
        pay_operator(self.budget, operator, left, right)
        return self.budget.pay_result(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Get an item. Its key is hashed, and printed if the item is missing."""
        if not isinstance(argument, str | int):
            self.budget.walk(argument)
        return super().getitem(obj, argument)

    def concat(self, parts: Iterable[str]) -> str:
        """Join the output of a macro or block."""
        parts = [*parts]
        self.budget.text(sum(map(len, parts)))
        return "".join(parts)

    # --- payments inserted by `paid` ------------------------------------------------------------

    def ticked(self, steps: int) -> bool:
        """Pay at the start of a body."""
        self.budget.step(steps)
        return True

    def written(self, value: Any) -> str:
        """Return the text of `{{ value }}`."""
        if isinstance(value, str):
            return value
        self.budget.walk(value)
        return str(value)

    def joined(self, *values: Any) -> str:
        """Compute `a ~ b`."""
        return self.concat(map(self.written, values))

    def compared(self, value: Any) -> Any:
        """Pay for the right side of a comparison, which may walk all of it."""
        if isinstance(value, str | list | tuple | dict):
            self.budget.walk(value)
        return value

    def hashed(self, value: Any) -> Any:
        """Pay for a key."""
        if isinstance(value, tuple):
            self.budget.walk(value)
        return value

    def sliced(self, value: Any) -> Any:
        """Pay for a slice."""
        return self.budget.pay_result(value)


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
            f"Chat templates may not use the statement {type(node).__name__.lower()!r}, which "
            "needs other templates. Use another template."
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
    """Insert payments into a parsed template."""
    changed: nodes.Template = _Payments().visit(template)
    return changed


def _own(method: str, *args: nodes.Expr) -> nodes.Call:
    """Return a call of a method of the environment."""
    return nodes.Call(nodes.EnvironmentAttribute(method), [*args], [], None, None)


def _around(method: str, node: nodes.Expr) -> nodes.Expr:
    items = node.items if isinstance(node, nodes.List | nodes.Tuple) else [node]
    constant = all(isinstance(item, nodes.Const) for item in items)
    return node if constant else _own(method, node)


class _Namespace(Namespace):
    """A namespace without private names, which could fake another type."""

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str) or name.startswith("_"):
            raise SecurityError(f"a namespace may not have {name!r:.40}")
        super().__setitem__(name, value)


def namespace(*args: Any, **named: Any) -> Namespace:
    """Return an object whose attributes inner scopes may assign."""
    space = _Namespace()
    for name, value in dict(*args, **named).items():
        space[name] = value
    return space
