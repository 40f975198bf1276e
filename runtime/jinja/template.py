"""A Jinja template as chat templates are written: parsed once, rendered within bounds."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateSyntaxError, UndefinedError, nodes

from ortolan.runtime.errors import ChatTemplateError
from ortolan.runtime.jinja.budget import Budget, count_values
from ortolan.runtime.jinja.evaluator import Evaluator
from ortolan.runtime.jinja.syntax import environment
from ortolan.runtime.jinja.values import Function, Namespace, Scope
from ortolan.runtime.limits import MAX_TEMPLATE_BYTES, MAX_TEMPLATE_TOKENS

__all__ = ["Template"]

MAX_RANGE = 10_000
"""Numbers of a `range`, each a step."""

MAX_DATE_FORMAT = 64
"""Characters of the format of a date."""


_MISTAKES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, UndefinedError)
"""What Python and Jinja raise where values are not what an operation takes."""

_DATE_WIDTH = re.compile(r"%[-_0^#+]*\d")
"""A width, which the C library takes before the letter."""


class Template:
    """A parsed template.

    White space around its statements is trimmed as transformers does it (`trim_blocks`,
    `lstrip_blocks`), and it may use `break`, `continue` and `{% generation %}`, which changes
    nothing here.

    Args:
        source: of the template.

    Raises:
        ChatTemplateError: it is no template, or longer than any.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._body = _parsed(source)

    def render(
        self, values: Mapping[str, Any], *, functions: Mapping[str, Any], now: datetime
    ) -> str:
        """What the template writes.

        Args:
            values: plain data by name, which the template does not change.
            functions: what it may call besides `range`, `namespace`, `dict` and `strftime_now`.
            now: what `strftime_now` tells.

        Raises:
            ChatTemplateError: the template asks for what there is not, or for too much: steps and
                strings are limited in proportion to the values.
            OrtolanError: what a function raises.
        """
        count, characters = count_values(dict(values))
        budget = Budget(values=count, characters=characters)
        own = {"dict": dict, "namespace": _namespace, "range": _range, "strftime_now": _tells(now)}
        globals_ = {name: Function(call) for name, call in {**own, **functions}.items()}
        evaluator = Evaluator(budget)
        try:
            return evaluator.render(self._body, Scope(dict(values), Scope(globals_)))
        except _MISTAKES as error:
            raise ChatTemplateError(
                f"chat template: expected line {evaluator.line} to make sense of these messages, "
                f"got {error}. Change the messages, or use another template."
            ) from error
        except RecursionError as error:
            raise ChatTemplateError(
                f"chat template: expected line {evaluator.line} to be simple, got something nested "
                "too deeply. Use another template."
            ) from error


def _parsed(source: str) -> list[nodes.Node]:
    size = len(source.encode(errors="surrogatepass"))
    if size > MAX_TEMPLATE_BYTES:
        raise ChatTemplateError(
            f"chat template: expected at most {MAX_TEMPLATE_BYTES} bytes, got {size}. "
            "Use another template."
        )
    jinja = environment()
    try:
        for number, _ in enumerate(jinja.lex(source)):
            if number == MAX_TEMPLATE_TOKENS:
                raise ChatTemplateError(
                    f"chat template: expected at most {MAX_TEMPLATE_TOKENS} words and signs, got "
                    "more. Use another template."
                )
        return jinja.parse(source).body
    except TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"chat template: expected a Jinja template, got one that is wrong in line "
            f"{error.lineno}: {error.message}. Correct it, or use another."
        ) from error
    except (RecursionError, ValueError, OverflowError) as error:
        raise ChatTemplateError(
            "chat template: expected a Jinja template, got one that is nested too deeply. "
            "Use another."
        ) from error


def _namespace(*args: Any, **named: Any) -> Namespace:
    return Namespace(dict(*args, **named))


def _range(*bounds: int) -> list[int]:
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise ChatTemplateError(
            f"chat template: expected a range of at most {MAX_RANGE}, got {len(numbers)}. "
            "Use another template."
        )
    return list(numbers)


def _tells(now: datetime) -> Any:
    def strftime_now(form: str) -> str:
        if len(form) > MAX_DATE_FORMAT or _DATE_WIDTH.search(form):
            raise ChatTemplateError(
                f"chat template: expected a simple format of a date, got {form[:40]!r}. "
                "Use another template."
            )
        return now.strftime(form)

    return strftime_now
