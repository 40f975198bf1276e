"""A chat template in Jinja, compiled once and rendered within a budget."""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from traceback import walk_tb
from types import CodeType
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.sandbox import safe_range
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from ortolan.errors import OrtolanError
from ortolan.runtime.errors import ChatTemplateError
from ortolan.runtime.jinja.sandbox import ITEM, Sandbox, refused
from ortolan.runtime.limits import MAX_TEMPLATE_BYTES, MAX_TEMPLATE_TOKENS

MAX_DATE_FORMAT = 64  # characters of a date format

# a width before the letter, which the C library would honor
_DATE_WIDTH = re.compile(r"%[-_0^#+]*\d")

_FILE = "<template>"  # file name of compiled templates in tracebacks
_sandbox = cache(Sandbox)


class Template:
    """A compiled template.

    As in transformers, white space around statements is trimmed (`trim_blocks`, `lstrip_blocks`),
    and `break`, `continue` and `{% generation %}` (without effect) are available.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._code, self.names = _compiled(source)

    def render(
        self, values: Mapping[str, Any], *, functions: Mapping[str, Any], now: datetime
    ) -> str:
        """Return the output of the template."""
        standard = {"dict": dict, "namespace": Namespace, "range": safe_range}
        functions = {**standard, "strftime_now": _strftime(now), **functions}
        sandbox = _sandbox().rendering(values, [*functions.values()])
        template = jinja2.Template.from_code(sandbox, self._code, functions)
        parts = []
        try:
            for part in template.root_render_func(template.new_context(dict(values))):
                sandbox.pay(len(part))
                parts.append(part)
        except OrtolanError:
            raise
        except RecursionError as error:
            line = _line(template, error)
            raise refused(f"Line {line} of the chat template is nested too deeply.") from error
        except Exception as error:  # Jinja and Python raise all kinds
            raise ChatTemplateError(
                f"Line {_line(template, error)} of the chat template fails for these messages: "
                f"{str(error)[:300]}. Change the messages, or use another template."
            ) from error
        return "".join(parts)


def _compiled(source: str) -> tuple[CodeType, frozenset[str]]:
    """Return the code of a template and the variables that it reads."""
    size = len(source.encode(errors="surrogatepass"))
    if size > MAX_TEMPLATE_BYTES:
        raise refused(f"The chat template has {size} bytes; the limit is {MAX_TEMPLATE_BYTES}.")
    jinja = _sandbox()
    try:
        for number, _ in enumerate(jinja.lex(source)):
            if number == MAX_TEMPLATE_TOKENS:
                raise refused(
                    f"The chat template has more than {MAX_TEMPLATE_TOKENS} Jinja tokens."
                )
        parsed = jinja.parse(source)
        names = frozenset(meta.find_undeclared_variables(parsed))
        return jinja.compile(_Payments().visit(parsed), filename=_FILE), names
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"Line {error.lineno} of the chat template is not valid Jinja: "
            f"{str(error.message).rstrip('.')}. Correct it, or use another template."
        ) from error
    except (RecursionError, SyntaxError, ValueError, MemoryError) as error:
        raise refused("The chat template is nested too deeply.") from error


def _line(template: jinja2.Template, error: Exception) -> int:
    """Return the line of the template that raised an error."""
    steps = walk_tb(error.__traceback__)
    lines = [line for frame, line in steps if frame.f_code.co_filename == _FILE]
    return template.get_corresponding_lineno(lines[-1]) if lines else 1


def _strftime(now: datetime) -> Any:
    def strftime_now(form: str) -> str:
        if len(form) > MAX_DATE_FORMAT or _DATE_WIDTH.search(form):
            raise refused(f"The chat template uses the complex date format {form[:40]!r}.")
        return now.strftime(form)

    return strftime_now


class _Payments(NodeTransformer):
    """Inserts payments into a parsed template.

    They stand in each body that may repeat, and around operations that Jinja has no hook for:
    `~`, comparisons, slices and keys.
    """

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
