"""Evaluates a template that Jinja has parsed, step by step, within a budget.

Jinja would compile it to Python code, which runs for as long as the template likes, and reaches
what Python objects reach. Here a value is plain data, and each operation is paid for.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jinja2 import Undefined, nodes

from ortolan.runtime.errors import ChatTemplateError
from ortolan.runtime.jinja.budget import Budget
from ortolan.runtime.jinja.filters import FILTERS, attribute, item, listed, test, written
from ortolan.runtime.jinja.methods import call_method
from ortolan.runtime.jinja.operators import binary, compare, unary
from ortolan.runtime.jinja.values import (
    Bound,
    Function,
    Loop,
    Macro,
    Namespace,
    Scope,
    undefined,
)

__all__ = ["Evaluator"]

MAX_MACRO_DEPTH = 40
"""Macros within macros, as for schemas within schemas."""


class _BreakError(Exception):
    """`{% break %}`."""


class _ContinueError(Exception):
    """`{% continue %}`."""


class Evaluator:
    """One rendering.

    Attributes:
        line: of the template, where it is.
    """

    def __init__(self, budget: Budget) -> None:
        self.line = 1
        self._budget = budget
        self._out: list[str] = []
        self._depth = 0

    def render(self, body: list[nodes.Node], scope: Scope) -> str:
        """What a template writes.

        Raises:
            ChatTemplateError: it asks for too much, or for what there is not.
            Exception: what Python raises for its operations on values of the wrong types.
        """
        with self._captured() as out:
            self._run(body, scope)
        return "".join(out)

    # --- statements -------------------------------------------------------------------------------

    def _run(self, body: list[nodes.Node], scope: Scope) -> None:
        for node in body:
            self._budget.step()
            self.line = node.lineno
            run = _STATEMENTS.get(type(node))
            if run is None:
                raise _unknown("statement", type(node).__name__)
            run(self, node, scope)

    def _output(self, node: nodes.Output, scope: Scope) -> None:
        for each in node.nodes:
            self.line = each.lineno
            if isinstance(each, nodes.TemplateData):
                text = each.data
            else:
                text = written(self._budget, self._value(each, scope))
            self._budget.text(len(text))
            self._out.append(text)

    def _if(self, node: nodes.If, scope: Scope) -> None:
        for branch in (node, *node.elif_):
            if self._value(branch.test, scope):
                self._run(branch.body, scope)
                return
        self._run(node.else_, scope)

    def _for(self, node: nodes.For, scope: Scope) -> None:
        if node.recursive:
            raise _unknown("statement", "for ... recursive")
        items = listed(self._budget, self._value(node.iter, scope))
        if node.test is not None:
            items = [each for each in items if self._holds(node, each, scope)]
        outer = scope.lookup("loop")
        loop = Loop(items, outer.depth0 + 1 if isinstance(outer, Loop) else 0)
        for index, each in enumerate(items):
            self._budget.step()
            loop.index0 = index
            inside = Scope({"loop": loop}, scope)
            self._assign_to(node.target, each, inside)
            try:
                self._run(node.body, inside)
            except _ContinueError:
                continue
            except _BreakError:
                break
        if not items:
            self._run(node.else_, Scope({}, scope))

    def _holds(self, node: nodes.For, each: Any, scope: Scope) -> bool:
        inside = Scope({}, scope)
        self._assign_to(node.target, each, inside)
        return bool(self._value(node.test, inside))

    def _assign(self, node: nodes.Assign, scope: Scope) -> None:
        self._assign_to(node.target, self._value(node.node, scope), scope)

    def _assign_block(self, node: nodes.AssignBlock, scope: Scope) -> None:
        with self._captured() as out:
            self._run(node.body, Scope({}, scope))
        text: Any = "".join(out)
        if node.filter is not None:
            text = self._block_filtered(node.filter, text, scope)
        self._assign_to(node.target, text, scope)

    def _assign_to(self, target: nodes.Node, value: Any, scope: Scope) -> None:
        match target:
            case nodes.Name():
                scope.values[target.name] = value
            case nodes.NSRef():
                namespace = scope.lookup(target.name)
                if not isinstance(namespace, Namespace):
                    raise TypeError(f"{target.name} is no namespace")
                namespace.values[target.attr] = value
            case nodes.Tuple():
                values = listed(self._budget, value)
                for part, each in zip(target.items, values, strict=True):
                    self._assign_to(part, each, scope)
            case _:
                raise _unknown("assignment to", type(target).__name__)

    def _macro(self, node: nodes.Macro, scope: Scope) -> None:
        scope.values[node.name] = _made_macro(node, node.name, scope)

    def _call_block(self, node: nodes.CallBlock, scope: Scope) -> None:
        caller = _made_macro(node, "caller", scope)
        self._out.append(written(self._budget, self._call(node.call, scope, caller=caller)))

    def _filter_block(self, node: nodes.FilterBlock, scope: Scope) -> None:
        with self._captured() as out:
            self._run(node.body, Scope({}, scope))
        text = self._block_filtered(node.filter, "".join(out), scope)
        self._out.append(written(self._budget, text))

    def _with(self, node: nodes.With, scope: Scope) -> None:
        inside = Scope({}, scope)
        for target, value in zip(node.targets, node.values, strict=True):
            self._assign_to(target, self._value(value, scope), inside)
        self._run(node.body, inside)

    def _scope(self, node: nodes.Scope, scope: Scope) -> None:
        self._run(node.body, Scope({}, scope))

    def _break(self, _: nodes.Break, __: Scope) -> None:
        raise _BreakError

    def _continue(self, _: nodes.Continue, __: Scope) -> None:
        raise _ContinueError

    @contextmanager
    def _captured(self) -> Iterator[list[str]]:
        around, self._out = self._out, []
        try:
            yield self._out
        finally:
            self._out = around

    # --- expressions ------------------------------------------------------------------------------

    def _value(self, node: Any, scope: Scope) -> Any:
        self._budget.step()
        value = _EXPRESSIONS.get(type(node))
        if value is None:
            raise _unknown("expression", type(node).__name__)
        return value(self, node, scope)

    def _values(self, several: list[Any], scope: Scope) -> list[Any]:
        return [self._value(node, scope) for node in several]

    def _constant(self, node: nodes.Const, _: Scope) -> Any:
        return self._budget.integer(node.value)

    def _name(self, node: nodes.Name, scope: Scope) -> Any:
        return scope.lookup(node.name)

    def _list(self, node: nodes.List, scope: Scope) -> Any:
        return self._values(node.items, scope)

    def _tuple(self, node: nodes.Tuple, scope: Scope) -> Any:
        return tuple(self._values(node.items, scope))

    def _dict(self, node: nodes.Dict, scope: Scope) -> Any:
        made = {}
        for pair in node.items:
            key = self._value(pair.key, scope)
            if not isinstance(key, str | int | float | None):
                raise TypeError(f"a {type(key).__name__} is no key")
            made[key] = self._value(pair.value, scope)
        return made

    def _choice(self, node: nodes.CondExpr, scope: Scope) -> Any:
        if self._value(node.test, scope):
            return self._value(node.expr1, scope)
        return undefined("else") if node.expr2 is None else self._value(node.expr2, scope)

    def _and(self, node: nodes.And, scope: Scope) -> Any:
        return self._value(node.left, scope) and self._value(node.right, scope)

    def _or(self, node: nodes.Or, scope: Scope) -> Any:
        return self._value(node.left, scope) or self._value(node.right, scope)

    def _unary(self, node: nodes.UnaryExpr, scope: Scope) -> Any:
        return unary(node.operator, self._value(node.node, scope))

    def _binary(self, node: nodes.BinExpr, scope: Scope) -> Any:
        left, right = self._value(node.left, scope), self._value(node.right, scope)
        return binary(self._budget, node.operator, left, right)

    def _concat(self, node: nodes.Concat, scope: Scope) -> str:
        parts = [written(self._budget, each) for each in self._values(node.nodes, scope)]
        self._budget.text(sum(map(len, parts)))
        return "".join(parts)

    def _compare(self, node: nodes.Compare, scope: Scope) -> Any:
        left = self._value(node.expr, scope)
        found: Any = True
        for operand in node.ops:
            right = self._value(operand.expr, scope)
            found = compare(self._budget, operand.op, left, right)
            if not found:
                break
            left = right
        return found

    def _attribute(self, node: nodes.Getattr, scope: Scope) -> Any:
        return attribute(self._value(node.node, scope), node.attr)

    def _item(self, node: nodes.Getitem, scope: Scope) -> Any:
        value = self._value(node.node, scope)
        if not isinstance(node.arg, nodes.Slice):
            return item(value, self._value(node.arg, scope))
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        part = value[slice(*(None if b is None else self._value(b, scope) for b in bounds))]
        (self._budget.text if isinstance(part, str) else self._budget.step)(len(part))
        return part

    def _filter(self, node: nodes.Filter, scope: Scope) -> Any:
        return self._filtered(node, self._value(node.node, scope), scope)

    def _filtered(self, node: nodes.Filter, value: Any, scope: Scope) -> Any:
        chosen = FILTERS.get(node.name)
        if chosen is None:
            raise _unknown("filter", node.name)
        args, named = self._arguments(node, scope)
        return chosen(self._budget, value, *args, **named)

    def _block_filtered(self, node: nodes.Filter, text: str, scope: Scope) -> Any:
        """A block through its filters, of which the parser has the last one outermost."""
        inner: Any = text
        if isinstance(node.node, nodes.Filter):
            inner = self._block_filtered(node.node, text, scope)
        return self._filtered(node, inner, scope)

    def _test(self, node: nodes.Test, scope: Scope) -> bool:
        args, _ = self._arguments(node, scope)
        return test(self._budget, node.name, self._value(node.node, scope), *args)

    def _call(self, node: nodes.Call, scope: Scope, **more: Any) -> Any:
        called = self._value(node.node, scope)
        args, named = self._arguments(node, scope)
        match called:
            case Bound():
                return call_method(called, self._budget, *args, **named)
            case Function():
                return called.call(*args, **named)
            case Macro():
                return self._expanded(called, args, named | more)
            case Undefined():
                called._fail_with_undefined_error()
        raise TypeError(f"a {type(called).__name__} is no function")

    def _arguments(self, node: Any, scope: Scope) -> tuple[list[Any], dict[str, Any]]:
        args = self._values(node.args, scope)
        named = {pair.key: self._value(pair.value, scope) for pair in node.kwargs}
        if node.dyn_args is not None:
            args += listed(self._budget, self._value(node.dyn_args, scope))
        if node.dyn_kwargs is not None:
            named |= self._value(node.dyn_kwargs, scope)
        return args, named

    def _expanded(self, macro: Macro, args: list[Any], named: dict[str, Any]) -> str:
        if self._depth == MAX_MACRO_DEPTH:
            raise ChatTemplateError(
                f"chat template: expected at most {MAX_MACRO_DEPTH} macros within each other, got "
                "more. Use simpler tools, or use another template."
            )
        inside = Scope({"caller": named.pop("caller", undefined("caller"))}, macro.scope)
        first_default = len(macro.parameters) - len(macro.defaults)
        for place, name in enumerate(macro.parameters):
            if place < len(args):
                value = args[place]
            elif name in named:
                value = named.pop(name)
            elif place >= first_default:
                value = self._value(macro.defaults[place - first_default], inside)
            else:
                value = undefined(name)
            inside.values[name] = value
        inside.values |= {"varargs": tuple(args[len(macro.parameters) :]), "kwargs": named}
        self._depth += 1
        with self._captured() as out:
            self._run(macro.body, inside)
        self._depth -= 1
        return "".join(out)


def _made_macro(node: Any, name: str, scope: Scope) -> Macro:
    return Macro(
        name=name,
        parameters=tuple(each.name for each in node.args),
        defaults=tuple(node.defaults),
        body=node.body,
        scope=scope,
    )


def _unknown(what: str, name: str) -> ChatTemplateError:
    return ChatTemplateError(
        f"chat template: expected what chat templates use, got the {what} {name!r}, which Ortolan "
        "does not have. Use another template."
    )


_STATEMENTS: Mapping[type, Callable[[Evaluator, Any, Scope], None]] = {
    nodes.Assign: Evaluator._assign,
    nodes.AssignBlock: Evaluator._assign_block,
    nodes.Break: Evaluator._break,
    nodes.CallBlock: Evaluator._call_block,
    nodes.Continue: Evaluator._continue,
    nodes.FilterBlock: Evaluator._filter_block,
    nodes.For: Evaluator._for,
    nodes.If: Evaluator._if,
    nodes.Macro: Evaluator._macro,
    nodes.Output: Evaluator._output,
    nodes.Scope: Evaluator._scope,
    nodes.With: Evaluator._with,
}

_EXPRESSIONS: Mapping[type, Callable[[Evaluator, Any, Scope], Any]] = {
    nodes.And: Evaluator._and,
    nodes.Call: Evaluator._call,
    nodes.Compare: Evaluator._compare,
    nodes.Concat: Evaluator._concat,
    nodes.CondExpr: Evaluator._choice,
    nodes.Const: Evaluator._constant,
    nodes.Dict: Evaluator._dict,
    nodes.Filter: Evaluator._filter,
    nodes.Getattr: Evaluator._attribute,
    nodes.Getitem: Evaluator._item,
    nodes.List: Evaluator._list,
    nodes.Name: Evaluator._name,
    nodes.Or: Evaluator._or,
    nodes.Test: Evaluator._test,
    nodes.Tuple: Evaluator._tuple,
    **dict.fromkeys([nodes.Not, nodes.Neg, nodes.Pos], Evaluator._unary),
    **dict.fromkeys(
        [nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow],
        Evaluator._binary,
    ),
}
