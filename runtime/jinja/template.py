"""A Jinja template as chat templates are written: parsed once, rendered within bounds."""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any

import jinja2
from jinja2 import meta
from jinja2.sandbox import safe_range

from ortolan.errors import OrtolanError
from ortolan.runtime.errors import ChatTemplateError
from ortolan.runtime.jinja.budget import Budget, count_values
from ortolan.runtime.jinja.sandbox import Sandbox, namespace, paid
from ortolan.runtime.limits import MAX_TEMPLATE_BYTES, MAX_TEMPLATE_TOKENS

__all__ = ["Template"]

MAX_DATE_FORMAT = 64
"""Characters of the format of a date."""

_DATE_WIDTH = re.compile(r"%[-_0^#+]*\d")
"""A width, which the C library takes before the letter."""

_FILE = "<template>"
"""What a compiled template calls itself."""

_sandbox = cache(Sandbox)


class Template:
    """A compiled template.

    White space around its statements is trimmed as transformers does it (`trim_blocks`,
    `lstrip_blocks`), and it may use `break`, `continue` and `{% generation %}`, which changes
    nothing here.

    Attributes:
        source: of the template.
        names: of the variables that it reads.

    Args:
        source: of the template.

    Raises:
        ChatTemplateError: it is no template, or longer than any.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._code, self.names = _compiled(source)

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
        own = {"dict": _dict, "namespace": namespace, "range": safe_range}
        given = {**own, "strftime_now": _tells(now), **functions}
        sandbox = _sandbox().rendering(budget, [*given.values()])
        template = jinja2.Template.from_code(sandbox, self._code, given)
        parts = []
        try:
            for part in template.root_render_func(template.new_context(dict(values))):
                budget.text(len(part))
                parts.append(part)
        except OrtolanError:
            raise
        except RecursionError as error:
            raise ChatTemplateError(
                f"chat template: expected line {_line(template, error)} to be simple, got "
                "something nested too deeply. Use another template."
            ) from error
        except Exception as error:  # what Jinja and Python raise has nothing else in common
            raise ChatTemplateError(
                f"chat template: expected line {_line(template, error)} to make sense of these "
                f"messages, got {str(error)[:300]}. Change the messages, or use another template."
            ) from error
        return "".join(parts)


def _compiled(source: str) -> tuple[CodeType, frozenset[str]]:
    """A template as code, and the names of the variables that it reads."""
    size = len(source.encode(errors="surrogatepass"))
    if size > MAX_TEMPLATE_BYTES:
        raise ChatTemplateError(
            f"chat template: expected at most {MAX_TEMPLATE_BYTES} bytes, got {size}. "
            "Use another template."
        )
    jinja = _sandbox()
    try:
        for number, _ in enumerate(jinja.lex(source)):
            if number == MAX_TEMPLATE_TOKENS:
                raise ChatTemplateError(
                    f"chat template: expected at most {MAX_TEMPLATE_TOKENS} words and signs, got "
                    "more. Use another template."
                )
        parsed = jinja.parse(source)
        names = frozenset(meta.find_undeclared_variables(parsed))
        return jinja.compile(paid(parsed), filename=_FILE), names
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"chat template: expected a Jinja template, got one that is wrong in line "
            f"{error.lineno}: {error.message}. Correct it, or use another."
        ) from error
    except (RecursionError, SyntaxError, ValueError, MemoryError) as error:
        raise ChatTemplateError(
            "chat template: expected a Jinja template, got one that is nested too deeply. "
            "Use another."
        ) from error


def _line(template: jinja2.Template, error: Exception) -> int:
    """Where in the template."""
    lines = [line for frame, line in walk_tb(error.__traceback__) if _is_of_template(frame)]
    return template.get_corresponding_lineno(lines[-1]) if lines else 1


def _is_of_template(frame: FrameType) -> bool:
    return frame.f_code.co_filename == _FILE


def _dict(*args: Any, **named: Any) -> dict[Any, Any]:
    """A function, since a class has more to reach."""
    return dict(*args, **named)


def _tells(now: datetime) -> Any:
    def strftime_now(form: str) -> str:
        if len(form) > MAX_DATE_FORMAT or _DATE_WIDTH.search(form):
            raise ChatTemplateError(
                f"chat template: expected a simple format of a date, got {form[:40]!r}. "
                "Use another template."
            )
        return now.strftime(form)

    return strftime_now
