"""Which tokens and texts the numbers of a tensor come from.

A span holds the first and the last of them for each number, int32. Along an axis that makes no
difference it has one entry, so its size is that of texts and tokens, whatever the width of a model.
A number that comes from none has its first after its last.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

NEVER = 2**30
"""The first of none; the last of none is its negative."""

PLACE = -1
"""The first of a number that depends on its place in what a step is shown."""

OPAQUE = "\0opaque"
"""The mark of a tensor of which nothing is known."""

Shape = tuple[int, ...]


class Span(NamedTuple):
    """The first and the last that each number comes from, with one entry where all are alike."""

    first: Tensor
    last: Tensor

    @property
    def has_several(self) -> bool:
        """Whether some number comes from more than one."""
        return bool((self.first < self.last).any())


def along(axis: int, shape: Shape) -> Span:
    """Each number comes from its own place on an axis."""
    sizes = [1] * len(shape)
    sizes[axis] = shape[axis]
    places = torch.arange(shape[axis], dtype=torch.int32).reshape(sizes)
    return Span(places, places)


def differs(shape: Shape, axes: Sequence[int] | None = None) -> Span:
    """A mark, without memory, of the axes along which constants differ; by default all."""
    sizes = [size if axes is None or axis in axes else 1 for axis, size in enumerate(shape)]
    mark = torch.empty(sizes, dtype=torch.int32, device="meta")
    return Span(mark, mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What is known of a tensor.

    Attributes:
        shape: its sizes.
        texts: the texts that its numbers come from; None where from none.
        tokens: the tokens, likewise.
        places: the axes along which it differs without coming from a token (`differs`).
        known: its numbers, where they are constants that are small enough.
        fresh: states recalled and not yet put before the tokens of this step.
        spent: states that are.
    """

    shape: Shape
    texts: Span | None = None
    tokens: Span | None = None
    places: Span | None = None
    known: Tensor | None = field(default=None, compare=False)
    fresh: frozenset[str] = frozenset()
    spent: frozenset[str] = frozenset()

    @property
    def is_constant(self) -> bool:
        """Whether it is the same whatever the texts are."""
        return self.texts is None and self.tokens is None


def unknown(shape: Shape) -> Value:
    """A tensor of which nothing is known, such as one whose size depends on the texts."""
    return Value(shape=shape, spent=frozenset([OPAQUE]))


def constant(numbers: Tensor) -> Value:
    """Numbers that are known, and the axes along which they differ."""
    axes = [
        axis
        for axis, size in enumerate(numbers.shape)
        if size > 1 and not bool((numbers == numbers.narrow(axis, 0, 1)).all())
    ]
    shape = tuple(numbers.shape)
    return Value(shape=shape, places=differs(shape, axes), known=numbers)


def changed(value: Value, shape: Shape, function: Callable[[Span], Span]) -> Value:
    """A value after something that moves or joins the numbers of one tensor."""
    texts, tokens, places = (
        None if span is None else fitted(function(span), shape)
        for span in (value.texts, value.tokens, value.places)
    )
    return replace(value, shape=shape, texts=texts, tokens=tokens, places=places, known=None)


def fitted(span: Span, shape: Shape) -> Span:
    """A span with the axes of a shape; all joined where it does not have them."""
    if span.first.dim() < len(shape):
        missing = [1] * (len(shape) - span.first.dim())
        span = Span(*(part.reshape(*missing, *part.shape) for part in span))
    sizes = tuple(span.first.shape)
    if len(sizes) == len(shape) and all(a in (1, b) for a, b in zip(sizes, shape, strict=True)):
        return span
    return Span(*(part.reshape([1] * len(shape)) for part in reduced(span, None, keeps=False)))


def joined(values: Sequence[Value], shape: Shape) -> Value:
    """Numbers computed from those at the same place of several tensors, right aligned."""
    texts, tokens, places = (
        _joined([span for span in spans if span is not None], shape)
        for spans in zip(*((each.texts, each.tokens, each.places) for each in values), strict=True)
    )
    loose = [each.places for each in values if each.tokens is None and each.places is not None]
    fixed = [each.places for each in values if each.is_constant and each.places is not None]
    return Value(
        shape=shape,
        texts=_placed(texts, fixed),
        tokens=_placed(tokens, loose),
        places=places if tokens is None else None,
        fresh=frozenset().union(*(each.fresh for each in values)),
        spent=frozenset().union(*(each.spent for each in values)),
    )


def _joined(spans: Sequence[Span], shape: Shape) -> Span | None:
    if not spans:
        return None
    span = fitted(spans[0], shape)
    for each in spans[1:]:
        other = fitted(each, shape)
        first, last = torch.minimum(span.first, other.first), torch.maximum(span.last, other.last)
        span = Span(first, last)
    return span


def _placed(span: Span | None, constants: Sequence[Span]) -> Span | None:
    """A span after what differs along one of its own axes is put beside it."""
    if span is None:
        return None
    axes = {axis - span.first.dim() for axis, size in enumerate(span.first.shape) if size > 1}
    for each in constants:
        own = {axis - each.first.dim() for axis, size in enumerate(each.first.shape) if size > 1}
        if own & axes:
            first = torch.where(span.last < 0, span.first, torch.full_like(span.first, PLACE))
            return Span(first, span.last)
    return span


def reduced(span: Span, axes: Sequence[int] | None, *, keeps: bool) -> Span:
    """A span after the numbers along some axes are joined; all axes by default."""
    dims = list(range(span.first.dim())) if axes is None else [*axes]
    if not dims:
        return span
    return Span(span.first.amin(dims, keepdim=keeps), span.last.amax(dims, keepdim=keeps))


def prefixed(span: Span, axis: int) -> Span:
    """A span after every number is joined with those before it."""
    if span.first.shape[axis] == 1:
        return span
    if span.first.is_meta:
        return span
    return Span(span.first.cummin(axis).values, span.last.cummax(axis).values)


def spread(span: Span, shape: Shape, axes: Sequence[int]) -> Span:
    """A span with all of its entries along some axes."""
    sizes = [size if axis in axes else span.first.shape[axis] for axis, size in enumerate(shape)]
    return Span(*(part.expand(sizes) for part in span))


def reshaped(span: Span, before: Shape, after: Shape) -> Span:
    """A span after a tensor is seen in another shape.

    Axes are taken in groups of the same number of entries; a group in which nothing differs is not
    spelled out.
    """
    sizes: list[int] = []
    entries: list[int] = []
    for old, new in _groups(before, after):
        differs_here = any(span.first.shape[axis] > 1 for axis in old)
        entries += [before[axis] if differs_here else 1 for axis in old]
        sizes += [after[axis] if differs_here else 1 for axis in new]
    out = Span(*(part.expand(entries).reshape(sizes) for part in span))
    return out if out.first.is_meta else _tight(out)


def _tight(span: Span) -> Span:
    """A span with one entry along each axis where nothing differs."""
    first, last = span
    for axis, size in enumerate(first.shape):
        narrow = first.narrow(axis, 0, 1), last.narrow(axis, 0, 1)
        if size > 1 and bool((first == narrow[0]).all()) and bool((last == narrow[1]).all()):
            first, last = narrow
    return Span(first, last)


def _groups(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """Axes before and after, in the smallest groups of equal size."""
    groups: list[tuple[list[int], list[int]]] = []
    old = new = 0
    while old < len(before) or new < len(after):
        mine, theirs = [], []
        a = b = 1
        if old < len(before):
            a, old, mine = before[old], old + 1, [old]
        if new < len(after):
            b, new, theirs = after[new], new + 1, [new]
        while a != b:
            if a < b:
                a, mine, old = a * before[old], [*mine, old], old + 1
            else:
                b, theirs, new = b * after[new], [*theirs, new], new + 1
        groups.append((mine, theirs))
    return groups


def collapsed(part: Tensor) -> Tensor:
    """A view of a span without the axes that were expanded."""
    for axis, (size, stride) in enumerate(zip(part.shape, part.stride(), strict=True)):
        if size > 1 and stride == 0:
            part = part.narrow(axis, 0, 1)
    return part


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
