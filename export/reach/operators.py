"""What a rule is given: an operator, and its arguments by their names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ortolan.export.reach.spans import Shape, Value, changed, reduced

Arguments = Mapping[str, Any]
"""Of an operator, by the names of its schema; tensors are a `Value`."""

Rule = Callable[[Any, Arguments, Shape], Value | list[Value]]
"""From the operator, its arguments and the shape that it gives."""


def name_of(operator: Any) -> str:
    """The name of an operator, without its kind: `mean` for `aten.mean.dim`."""
    schema = getattr(operator, "_schema", None)
    return str(operator) if schema is None else schema.name.partition("::")[2]


def values_in(arguments: Arguments) -> list[Value]:
    """The tensors among arguments."""
    found: list[Value] = []
    for argument in arguments.values():
        parts = argument if isinstance(argument, (list, tuple)) else [argument]
        found += [part for part in parts if isinstance(part, Value)]
    return found


def axis_of(axis: int, count: int) -> int:
    """An axis counted from the first."""
    return axis + count if axis < 0 else axis


def axes_of(given: int | Sequence[int] | None, count: int) -> list[int]:
    """Axes counted from the first; all of them where none is named."""
    if given is None or (not isinstance(given, int) and len(given) == 0):
        return list(range(count))
    return [axis_of(axis, count) for axis in ([given] if isinstance(given, int) else given)]


def without(value: Value, axis: int) -> Value:
    """A value whose entries along an axis are all joined."""
    sizes = tuple(1 if place == axis else size for place, size in enumerate(value.shape))
    return changed(value, sizes, lambda span: reduced(span, [axis], keeps=True))


def without_axes(value: Value, axes: Sequence[int]) -> Value:
    """All entries along some axes joined, in the same shape."""
    return changed(value, value.shape, lambda span: reduced(span, axes, keeps=True))
