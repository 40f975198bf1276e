"""A chat template in Jinja, compiled once and rendered within a budget."""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from traceback import walk_tb
from types import CodeType
from typing import Any

import jinja2
from jinja2 import meta
from jinja2.sandbox import safe_range
from jinja2.utils import Namespace

from ortolan.errors import OrtolanError
from ortolan.runtime.errors import ChatTemplateError
from ortolan.runtime.jinja.payments import Payments
from ortolan.runtime.jinja.sandbox import Sandbox, refused
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
        return jinja.compile(Payments().visit(parsed), filename=_FILE), names
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
