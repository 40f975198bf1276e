"""The vocabulary: operators that `ortolan.export` writes, and in which forms. No others are loaded.

onnxruntime has hundreds of kernels, and some end the process on input that their author did not
expect. So a bundle may contain the few dozen operators that an export writes, with the attributes,
types, inputs and outputs that it writes. `scripts/vocabulary.py` collects them from the tests'
exports into `vocabulary.json`.

A form lists the types of a node's inputs and outputs:

    float, -, int64 -> float      `float` is float32, float16 or bfloat16; `-` is left out
    int64... -> int64             any number of inputs of one type

Kernels of onnxruntime's own operators trust their input, so these need a listed form. For standard
operators onnxruntime checks how types go together, so it is enough that each input and output has
a type that occurs in its place in some form.
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

DATA = "vocabulary.json"

_FLOATS = frozenset({"float32", "float16", "bfloat16"})

_ANY_NUMBER_IN = frozenset(
    {"ai.onnx::Concat", "ai.onnx::Einsum", "ai.onnx::Max", "ai.onnx::Min", "ai.onnx::Sum"}
)
_ANY_NUMBER_OUT = frozenset({"ai.onnx::Split"})

_KINDS: Mapping[int, str] = {1: "float", 2: "int", 4: "tensor", 6: "floats", 7: "ints"}
"""Kinds of attributes by ONNX number. For text the kind is the value in quotes."""

_TEXT = 3

_LEFT_OUT = "-"


class Operator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The forms of an operator.

    Attributes:
        attributes: kinds of attributes by name.
        forms: types of inputs and outputs.
    """

    attributes: dict[str, frozenset[str]]
    forms: frozenset[str]


@cache
def vocabulary() -> Mapping[str, Operator]:
    """Return the vocabulary by `domain::op_type`."""
    data = files("ortolan.runtime.graph").joinpath(DATA).read_bytes()
    return msgspec.json.decode(data, type=dict[str, Operator])


def foreign_forms(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return distinct forms of nodes that are not in the vocabulary, sorted."""
    operators = vocabulary()
    forms: dict[Any, str] = {}
    for node in nodes:
        key = (
            node.operator,
            node.input_types,
            node.output_types,
            tuple([(a.name, a.type, a.s) for a in node.message.attribute]),
        )
        if key not in forms:
            forms[key] = _foreign(operators.get(node.operator), node)
    foreign = sorted(set(forms.values()) - {""})
    check_count("forms outside the vocabulary", len(foreign), limits.MAX_FOREIGN_FORMS)
    for form in foreign:
        check_count(f"characters in {form[:80]}", len(form), limits.MAX_FORM_LENGTH)
    return tuple(foreign)


def form_of(node: Node) -> str:
    """Return the form of a node."""
    takes = [_type_word(name) for name in node.input_types]
    gives = [_type_word(name) for name in node.output_types]
    if node.operator in _ANY_NUMBER_IN:
        takes = _any_number(takes)
    if node.operator in _ANY_NUMBER_OUT:
        gives = _any_number(gives)
    return f"{', '.join(takes)} -> {', '.join(gives)}".strip()


def attribute_kind(attribute: Any) -> str:
    """Return the kind of an attribute; for text, its value in quotes."""
    if attribute.type == _TEXT:
        if attribute.name == b"equation":  # Einsum: any value
            return "text"
        return f"'{text(attribute.s)}'"
    return _KINDS.get(attribute.type, "unknown")


def _foreign(operator: Operator | None, node: Node) -> str:
    """The form or attribute of a node that is not in the vocabulary; empty if all is."""
    form = form_of(node)
    if operator is None or not (form in operator.forms or _fits(node.operator, form)):
        return f"{node.operator}: {form}"
    kinds = {text(a.name): attribute_kind(a) for a in node.message.attribute}
    for name, kind in kinds.items():
        if kind not in operator.attributes.get(name, ()):
            return f"{node.operator}: {name} = {kind}"
    return ""


def _fits(operator: str, form: str) -> bool:
    """Whether each type in the form of a standard operator occurs in its place in some form."""
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
    """Types that occur at each place, of an operator's inputs and of its outputs."""
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
    """Shorten types to one with `...` if all are equal."""
    return [f"{types[0]}..."] if len(set(types)) == 1 else types
