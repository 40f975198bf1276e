"""Which rows of a batch, and which tokens, the numbers of a tensor come from.

A span holds the first and the last of them for every number, as int32:

    x = embed(ids)       first  0 1 2 3    every number comes from its own token
                         last   0 1 2 3
    x.cumsum(1)          first  0 0 0 0    from its own and all earlier ones
                         last   0 1 2 3

Along an axis that makes no difference a span has one entry, so its size does not depend on the
width of a model. The first of a number that comes from nothing is greater than its last.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

NEVER = 2**30
"""The first of a number that comes from nothing; its last is the negative."""

PLACE = -1
"""The first of a number that depends on its place in the chunk."""

OPAQUE = "\0opaque"
"""Marks a tensor of which nothing is known."""

Shape = tuple[int, ...]

Arguments = Mapping[str, Any]
"""An operator's arguments by the names of its schema; tensors are a `Value`."""


class Span(NamedTuple):
    """The first and the last origin of each number, with one entry where all are alike."""

    first: Tensor
    last: Tensor

    @property
    def has_several(self) -> bool:
        """Whether some number comes from more than one."""
        return bool((self.first < self.last).any())

    def map(self, function: Callable[[Tensor], Tensor]) -> "Span":
        """Apply a function to both."""
        return Span(function(self.first), function(self.last))


def along(axis: int, shape: Shape) -> Span:
    """Every number comes from its own place on an axis."""
    sizes = [1] * len(shape)
    sizes[axis] = shape[axis]
    places = torch.arange(shape[axis], dtype=torch.int32).reshape(sizes)
    return Span(places, places)


def differs(shape: Shape, axes: Sequence[int] | None = None) -> Span:
    """Mark, without memory, the axes along which a constant differs; by default all."""
    sizes = [size if axes is None or axis in axes else 1 for axis, size in enumerate(shape)]
    mark = torch.empty(sizes, dtype=torch.int32, device="meta")
    return Span(mark, mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Everything known about a tensor.

    Attributes:
        shape: its sizes.
        rows: rows of the batch that its numbers come from; None if from none.
        tokens: tokens that its numbers come from; None if from none.
        places: the axes along which it differs without coming from a token (`differs`).
        known: its numbers, if they are constant and few enough.
        fresh: states recalled into it but not yet put before the tokens of this step.
        spent: states recalled into it and put before them.
    """

    shape: Shape
    rows: Span | None = None
    tokens: Span | None = None
    places: Span | None = None
    known: Tensor | None = field(default=None, compare=False)
    fresh: frozenset[str] = frozenset()
    spent: frozenset[str] = frozenset()

    @property
    def spans(self) -> tuple[Span | None, Span | None, Span | None]:
        """Its rows, tokens and places."""
        return self.rows, self.tokens, self.places


def unknown(shape: Shape) -> Value:
    """A tensor of which nothing is known, such as one whose size depends on the ids."""
    return Value(shape=shape, spent=frozenset([OPAQUE]))


def constant(numbers: Tensor) -> Value:
    """A tensor of known numbers."""
    axes = [
        axis
        for axis, size in enumerate(numbers.shape)
        if size > 1 and not bool((numbers == numbers.narrow(axis, 0, 1)).all())
    ]
    shape = tuple(numbers.shape)
    return Value(shape=shape, places=differs(shape, axes), known=numbers)


def changed(value: Value, shape: Shape, function: Callable[[Span], Span]) -> Value:
    """A value after an operator that moves or joins the numbers of one tensor."""
    rows, tokens, places = (
        None if span is None else fitted(function(span), shape) for span in value.spans
    )
    return replace(value, shape=shape, rows=rows, tokens=tokens, places=places, known=None)


def fitted(span: Span, shape: Shape) -> Span:
    """A span with the axes of a shape; with all numbers joined if it does not fit."""
    if span.first.dim() < len(shape):
        missing = [1] * (len(shape) - span.first.dim())
        span = span.map(lambda part: part.reshape(*missing, *part.shape))
    sizes = tuple(span.first.shape)
    if len(sizes) == len(shape) and all(a in (1, b) for a, b in zip(sizes, shape, strict=True)):
        return span
    return reduced(span, None, keeps=False).map(lambda part: part.reshape([1] * len(shape)))


def joined(values: Sequence[Value], shape: Shape) -> Value:
    """A value computed number by number from several tensors, broadcast to a shape."""
    rows, tokens, places = (
        _joined([span for span in spans if span is not None], shape)
        for spans in zip(*(value.spans for value in values), strict=True)
    )
    loose = [v.places for v in values if v.tokens is None and v.places is not None]
    fixed = [v.places for v in values if v.rows is v.tokens is None and v.places is not None]
    return Value(
        shape=shape,
        rows=_placed(rows, fixed),
        tokens=_placed(tokens, loose),
        places=places if tokens is None else None,
        fresh=frozenset().union(*(value.fresh for value in values)),
        spent=frozenset().union(*(value.spent for value in values)),
    )


def _joined(spans: Sequence[Span], shape: Shape) -> Span | None:
    if not spans:
        return None
    span = fitted(spans[0], shape)
    for other in spans[1:]:
        first, last = fitted(other, shape)
        span = Span(torch.minimum(span.first, first), torch.maximum(span.last, last))
    return span


def _placed(span: Span | None, constants: Sequence[Span]) -> Span | None:
    """A span combined with constants: a number depends on its place where both differ."""
    if span is None:
        return None
    axes = _differing(span)
    if not any(axes & _differing(other) for other in constants):
        return span
    place = torch.full_like(span.first, PLACE)
    return Span(torch.where(span.last < 0, span.first, place), span.last)


def _differing(span: Span) -> set[int]:
    """The axes along which a span differs, counted from the last."""
    return {axis - span.first.dim() for axis, size in enumerate(span.first.shape) if size > 1}


def reduced(span: Span, axes: Sequence[int] | None, *, keeps: bool) -> Span:
    """A span after the numbers along some axes are joined; by default along all."""
    dims = list(range(span.first.dim())) if axes is None else [*axes]
    if not dims:
        return span
    return Span(span.first.amin(dims, keepdim=keeps), span.last.amax(dims, keepdim=keeps))


def prefixed(span: Span, axis: int) -> Span:
    """A span after every number is joined with those before it."""
    if span.first.shape[axis] == 1 or span.first.is_meta:
        return span
    return Span(span.first.cummin(axis).values, span.last.cummax(axis).values)


def spread(span: Span, shape: Shape, axes: Sequence[int]) -> Span:
    """A span with every entry along some axes spelled out."""
    sizes = [size if axis in axes else span.first.shape[axis] for axis, size in enumerate(shape)]
    return span.map(lambda part: part.expand(sizes))


def reshaped(span: Span, before: Shape, after: Shape) -> Span:
    """A span after its tensor is viewed in another shape.

    Axes are taken in the smallest groups of equal size. A group along which nothing differs keeps
    one entry.
    """
    sizes: list[int] = []
    entries: list[int] = []
    for old, new in _groups(before, after):
        differs_here = any(span.first.shape[axis] > 1 for axis in old)
        entries += [before[axis] if differs_here else 1 for axis in old]
        sizes += [after[axis] if differs_here else 1 for axis in new]
    out = span.map(lambda part: part.expand(entries).reshape(sizes))
    return out if out.first.is_meta else _tight(out)


def _tight(span: Span) -> Span:
    """A span with one entry along every axis where nothing differs."""
    first, last = span
    for axis, size in enumerate(first.shape):
        narrow = first.narrow(axis, 0, 1), last.narrow(axis, 0, 1)
        if size > 1 and bool((first == narrow[0]).all()) and bool((last == narrow[1]).all()):
            first, last = narrow
    return Span(first, last)


def _groups(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """Axes before and after a view, in the smallest groups of equal size.

    `(2, 3, 4)` viewed as `(6, 4)` is `([0, 1], [0])` and `([2], [1])`.
    """
    groups: list[tuple[list[int], list[int]]] = []
    old = new = 0
    while old < len(before) or new < len(after):
        olds, news = [], []
        a = b = 1
        if old < len(before):
            a, old, olds = before[old], old + 1, [old]
        if new < len(after):
            b, new, news = after[new], new + 1, [new]
        while a != b:
            if a < b:
                a, olds, old = a * before[old], [*olds, old], old + 1
            else:
                b, news, new = b * after[new], [*news, new], new + 1
        groups.append((olds, news))
    return groups


def collapsed(part: Tensor) -> Tensor:
    """One entry along every axis that was expanded."""
    for axis, (size, stride) in enumerate(zip(part.shape, part.stride(), strict=True)):
        if size > 1 and stride == 0:
            part = part.narrow(axis, 0, 1)
    return part


def name_of(operator: Any) -> str:
    """The name of an operator without its overload: `mean` for `aten.mean.dim`."""
    schema = getattr(operator, "_schema", None)
    return str(operator) if schema is None else schema.name.partition("::")[2]


def values_in(arguments: Arguments) -> list[Value]:
    """The tensors among arguments."""
    values: list[Value] = []
    for argument in arguments.values():
        parts = argument if isinstance(argument, (list, tuple)) else [argument]
        values += [part for part in parts if isinstance(part, Value)]
    return values


def axis_of(axis: int, count: int) -> int:
    """An axis counted from the first."""
    return axis + count if axis < 0 else axis


def axes_of(axes: int | Sequence[int] | None, count: int) -> list[int]:
    """Axes counted from the first; all of them if none is named."""
    if axes is None or (not isinstance(axes, int) and len(axes) == 0):
        return list(range(count))
    return [axis_of(axis, count) for axis in ([axes] if isinstance(axes, int) else axes)]


def without(value: Value, axis: int) -> Value:
    """A value with all numbers along an axis joined into one."""
    sizes = tuple(1 if place == axis else size for place, size in enumerate(value.shape))
    return changed(value, sizes, lambda span: reduced(span, [axis], keeps=True))


def without_axes(value: Value, axes: Sequence[int]) -> Value:
    """A value of the same shape with all numbers along some axes joined."""
    return changed(value, value.shape, lambda span: reduced(span, axes, keeps=True))
