"""What a grammar may cost, before the parser sees it and while it runs.

Fuel bounds a step of the parser, but not all of its preparations: regular expressions that hold
together are combined while the grammar is read, and their states multiply.
"""

import re
from decimal import Decimal, InvalidOperation
from typing import Any

from ortolan.runtime.errors import GrammarError
from ortolan.runtime.limits import (
    MAX_GRAMMAR_BYTES,
    MAX_GRAMMAR_CONJUNCTIONS,
    MAX_GRAMMAR_MULTIPLES,
)

__all__ = ["COMPILED_GRAMMARS", "PARSER_LIMITS", "check_grammar"]

COMPILED_GRAMMARS = 16
"""Grammars that a model keeps compiled; an agent has one for each of its tools."""

PARSER_LIMITS: dict[str, Any] = {
    "max_items_in_row": 1_000,
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,  # they would hold the grammar
}
"""Of llguidance, a tenth to a half of its defaults: a step takes some milliseconds at worst."""

_ESCAPE = re.compile(r"\\u00([0-7][0-9a-fA-F])")
_REGEXES = re.compile(r'"(?:pattern|patternProperties|format)"')
_MERGING = re.compile(r'"(?:allOf|\$ref)"')
_MULTIPLE = re.compile(r'"multipleOf"\s*:\s*([0-9.eE+-]+)')
_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def check_grammar(text: Any) -> None:
    """Refuse what would take too long to prepare.

    Raises:
        GrammarError: not Unicode text, too long, or too much in it that has to hold together.
    """
    if not isinstance(text, str):
        raise GrammarError(f"grammar: expected text, got {type(text).__name__}.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise GrammarError(
            f"grammar: expected Unicode, got half a surrogate pair at index {error.start}."
        ) from None
    if size > MAX_GRAMMAR_BYTES:
        raise GrammarError(
            f"grammar: expected at most {MAX_GRAMMAR_BYTES} bytes, got {size}. Make it smaller."
        )
    plain = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    combined = _LITERAL.sub("", plain).count("&")
    if _MERGING.search(plain):
        combined = max(combined, len(_REGEXES.findall(plain)))
    if combined > MAX_GRAMMAR_CONJUNCTIONS:
        raise GrammarError(
            f"grammar: expected at most {MAX_GRAMMAR_CONJUNCTIONS} patterns that may have to hold "
            f"together (`allOf`, `$ref`, `&`), got {combined}. Use fewer."
        )
    states = sum(_remainders(multiple) for multiple in _MULTIPLE.findall(plain))
    if states > MAX_GRAMMAR_MULTIPLES:
        raise GrammarError(
            f"grammar: expected multipleOf of at most {MAX_GRAMMAR_MULTIPLES} in all, got more. "
            "Use smaller ones."
        )


def _remainders(multiple: str) -> int:
    """How many remainders a decimal number leaves, or many."""
    try:
        _, digits, exponent = Decimal(multiple).as_tuple()
    except InvalidOperation:
        return 0
    if not isinstance(exponent, int) or len(digits) + max(exponent, 0) > 9:
        return MAX_GRAMMAR_MULTIPLES + 1
    return int("".join(map(str, digits)) + "0" * max(exponent, 0))
