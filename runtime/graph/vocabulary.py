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
    """The kinds of an operator's attributes by name, and its forms."""

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
    takes = _side(node.input_types, any_number=node.operator in _ANY_NUMBER_IN)
    gives = _side(node.output_types, any_number=node.operator in _ANY_NUMBER_OUT)
    return f"{takes} -> {gives}".strip()


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
    return all(
        len(words) <= len(places)
        and all(word in place for word, place in zip_longest(words, places, fillvalue=_LEFT_OUT))
        for words, places in zip(_words(form), _places(operator), strict=True)
    )


@cache
def _places(operator: str) -> list[list[set[str]]]:
    """Types that occur at each place, of an operator's inputs and of its outputs."""
    sides = zip(*map(_words, vocabulary()[operator].forms), strict=True)
    return [list(map(set, zip_longest(*forms, fillvalue=_LEFT_OUT))) for forms in sides]


def _words(form: str) -> list[list[str]]:
    return [side.split(",") for side in form.replace(" ", "").split("->")]


def _side(types: Iterable[str], *, any_number: bool) -> str:
    words = ["float" if name in _FLOATS else name or _LEFT_OUT for name in types]
    if any_number and len(set(words)) == 1:
        return f"{words[0]}..."
    return ", ".join(words)
