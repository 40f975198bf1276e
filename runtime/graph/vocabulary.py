"""The operators that `ortolan.export` writes, and in which forms: nothing else is loaded.

A kernel of onnxruntime may end the process when it is given what its author did not think of,
and there are hundreds. So a bundle may hold the few dozens that an export writes, each with the
attributes, the element types and the inputs and outputs that it is written with.
`vocabulary.json` has them, collected from the exports of the tests by `scripts/vocabulary.py`.

A form is what a node takes and gives, such as `float, -, int64 -> float`. `float` stands for the
types that a bundle computes in, and a `-` for what is left out; `...` for any number of what
comes before. The kernels of onnxruntime's own operators trust what they are given, and those are
loaded only in the forms that are written; of a standard operator, every input and output has to
be of a type that is written there, since onnxruntime checks how they go together.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from typing import Any

import msgspec

from ortolan.runtime import limits
from ortolan.runtime.graph.element_types import Node
from ortolan.runtime.graph.schema import check_count, text

__all__ = ["DATA", "Operator", "attribute_kind", "foreign_forms", "form_of", "vocabulary"]

DATA = "vocabulary.json"

_FLOATS = frozenset({"float32", "float16", "bfloat16"})

_ANY_NUMBER_IN = frozenset(
    {"ai.onnx::Concat", "ai.onnx::Einsum", "ai.onnx::Max", "ai.onnx::Min", "ai.onnx::Sum"}
)
_ANY_NUMBER_OUT = frozenset({"ai.onnx::Split"})

_KINDS: Mapping[int, str] = {1: "float", 2: "int", 4: "tensor", 6: "floats", 7: "ints"}
"""Kinds of attributes, as ONNX counts them. One of text is its value instead."""

_TEXT = 3

_LEFT_OUT = "-"


class Operator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an operator is written.

    Attributes:
        attributes: name to kinds.
        forms: what it takes and gives.
    """

    attributes: dict[str, frozenset[str]]
    forms: frozenset[str]


@cache
def vocabulary() -> Mapping[str, Operator]:
    """What is written, by `domain::op_type`."""
    data = files("ortolan.runtime.graph").joinpath(DATA).read_bytes()
    return msgspec.json.decode(data, type=dict[str, Operator])


def foreign_forms(nodes: Iterable[Node]) -> tuple[str, ...]:
    """What of a graph is not in the vocabulary, each once and sorted.

    Raises:
        RefusedError: names that are no text; too many forms, or one with too many inputs.
    """
    known = vocabulary()
    found: dict[Any, str] = {}
    for node in nodes:
        key = (
            node.operator,
            node.takes,
            node.gives,
            tuple([(a.name, a.type, a.s) for a in node.message.attribute]),
        )
        if key not in found:
            found[key] = _foreign(known.get(node.operator), node)
    foreign = sorted(set(found.values()) - {""})
    check_count(
        "forms of nodes that ortolan does not write", len(foreign), limits.MAX_FOREIGN_FORMS
    )
    for form in foreign:
        check_count(f"characters in {form[:80]}", len(form), limits.MAX_FORM_LENGTH)
    return tuple(foreign)


def form_of(node: Node) -> str:
    """What a node takes and gives."""
    takes = [_type_word(name) for name in node.takes]
    gives = [_type_word(name) for name in node.gives]
    if node.operator in _ANY_NUMBER_IN:
        takes = _any_number(takes)
    if node.operator in _ANY_NUMBER_OUT:
        gives = _any_number(gives)
    return f"{', '.join(takes)} -> {', '.join(gives)}".strip()


def attribute_kind(attribute: Any) -> str:
    """The kind of an attribute, or its value in quotes if that is a text of few.

    Raises:
        RefusedError: a value that is no text.
    """
    if attribute.type == _TEXT:
        if attribute.name == b"equation":  # of Einsum: any
            return "text"
        return f"'{text(attribute.s)}'"
    return _KINDS.get(attribute.type, "unknown")


def _foreign(known: Operator | None, node: Node) -> str:
    """What of a node is not in the vocabulary; empty if all is."""
    form = form_of(node)
    if known is None or not (form in known.forms or _fits(node.operator, form)):
        return f"{node.operator}: {form}"
    given = {text(a.name): attribute_kind(a) for a in node.message.attribute}
    for name, kind in given.items():
        if kind not in known.attributes.get(name, ()):
            return f"{node.operator}: {name} = {kind}"
    return ""


def _fits(operator: str, form: str) -> bool:
    """Whether a standard operator takes and gives, at each place, what it does in some form."""
    if not operator.startswith("ai.onnx::"):
        return False
    sides = zip(_words(form), _places(operator), strict=True)
    return all(
        len(words) <= len(places)
        and all(word in place for word, place in zip_longest(words, places, fillvalue=_LEFT_OUT))
        for words, places in sides
    )


@cache
def _places(operator: str) -> tuple[list[set[str]], list[set[str]]]:
    """What stands at each place, of what an operator takes and of what it gives."""
    takes, gives = zip(*map(_words, vocabulary()[operator].forms), strict=True)
    return _by_place(takes), _by_place(gives)


def _by_place(sides: Iterable[list[str]]) -> list[set[str]]:
    return [set(words) for words in zip_longest(*sides, fillvalue=_LEFT_OUT)]


def _words(form: str) -> tuple[list[str], list[str]]:
    takes, _, gives = form.partition("->")
    return takes.replace(" ", "").split(","), gives.replace(" ", "").split(",")


def _type_word(name: str) -> str:
    return "float" if name in _FLOATS else name or _LEFT_OUT


def _any_number(types: list[str]) -> list[str]:
    """One for all, if they are of one type."""
    return [f"{types[0]}..."] if len(set(types)) == 1 else types
