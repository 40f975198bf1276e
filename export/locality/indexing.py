"""Rules for operators that read or write numbers by an index."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ortolan.export.locality.spans import (
    Arguments,
    Shape,
    Span,
    Value,
    axis_of,
    changed,
    joined,
    reduced,
    values_in,
    without,
)


def embedded(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Rows of a table."""
    table, indices = arguments["weight"], arguments["indices"]
    column = (*indices.shape, 1)
    rows = changed(indices, column, lambda span: span.map(lambda p: p.unsqueeze(-1)))
    whole = changed(table, (1, table.shape[1]), lambda span: reduced(span, [0], keeps=True))
    return joined([rows, whole], shape)


def gathered(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Numbers chosen along one axis, each by its own index."""
    value, index = arguments["self"], arguments["index"]
    axis = axis_of(arguments["dim"], len(shape))
    sizes = tuple(1 if place == axis else size for place, size in enumerate(shape))

    def cut(part: Tensor) -> Tensor:
        for place, size in enumerate(sizes):
            part = part.narrow(place, 0, min(size, part.shape[place]))
        return part

    whole = changed(without(value, axis), sizes, lambda span: span.map(cut))
    return joined([whole, index], shape)


def scattered(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Numbers written along one axis, each to the place that its index says."""
    axis = axis_of(arguments["dim"], len(shape))
    value = arguments["self"]
    written = [without(other, axis) for other in values_in(arguments) if other is not value]
    return joined([value, *written], shape)


def indexed(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Numbers chosen along several axes; exactly, where an index is known."""
    value, indices = arguments["self"], arguments["indices"]
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    chosen = [index for index in indices if index is not None]
    block = _broadcast([index.shape for index in chosen])
    # Adjacent axes are replaced where they are, others at the front.
    start = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    rest = [axis for axis in range(len(value.shape)) if axis not in axes]
    unknown = [a for a, index in zip(axes, chosen, strict=True) if index.known is None]

    def pick(span: Span) -> Span:
        span = reduced(span, unknown, keeps=True) if unknown else span
        differing = [axis for axis in axes if span.first.shape[axis] > 1]
        sizes = [span.first.shape[axis] for axis in rest]
        if not differing:
            lead = [1] * len(block)
            return span.map(
                lambda p: _squeezed(p, axes).reshape([*sizes[:start], *lead, *sizes[start:]])
            )
        if span.first.is_meta:
            # A mark without numbers: only its axes count.
            wide = [*sizes[:start], *block, *sizes[start:]]
            return span.map(lambda p: p.reshape(-1)[:1].expand(wide))
        picks: list[Any] = [slice(None)] * len(value.shape)
        for axis, index in zip(axes, chosen, strict=True):
            is_used = axis in differing and index.known is not None
            picks[axis] = index.known if is_used else torch.zeros(block, dtype=torch.int64)
        return span.map(lambda p: p[tuple(picks)])

    after = [1] * (len(rest) - start)
    laid = [
        changed(
            index,
            (*index.shape, *after),
            lambda span: span.map(lambda p: p.reshape(*p.shape, *after)),
        )
        for index in chosen
        if index.known is None
    ]
    return joined([changed(value, shape, pick), *laid], shape)


def _squeezed(part: Tensor, axes: Sequence[int]) -> Tensor:
    for axis in sorted(axes, reverse=True):
        part = part.squeeze(axis)
    return part


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape to which all are broadcast."""
    count = max(map(len, shapes))
    wide = [(1,) * (count - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*wide, strict=True))


def put(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Numbers written to places along several axes.

    If one index counts all places of its axis in order, numbers written there keep their place on
    that axis; otherwise every number may end up anywhere.
    """
    value, indices, written = arguments["self"], arguments["indices"], arguments["values"]
    chosen = [index for index in indices if index is not None]
    counted = [
        (axis, index)
        for axis, index in enumerate(indices)
        if index is not None and _counts(index, shape[axis])
    ]
    sizes = [1] * len(shape)
    keep: Callable[[Span], Span] = partial(reduced, axes=None, keeps=False)
    if counted:
        axis, index = counted[0]
        sizes[axis] = shape[axis]
        # The index's own axis, counted from the last of the block.
        own = max(range(len(index.shape)), key=lambda a: index.shape[a]) - len(index.shape)
        keep = partial(_along, own=own, sizes=sizes)
    return joined([value, *(changed(v, tuple(sizes), keep) for v in (*chosen, written))], shape)


def _along(span: Span, *, own: int, sizes: Sequence[int]) -> Span:
    """A span along one axis of its own, as one along the single axis of `sizes` that differs."""
    count = span.first.dim()
    axes = [axis for axis in range(count) if axis != count + own]
    span = reduced(span, axes, keeps=True) if axes else span
    size = span.first.numel()
    return span.map(lambda p: p.reshape([size if s > 1 else 1 for s in sizes]))


def _counts(index: Value, size: int) -> bool:
    """Whether an index is 0, 1, ... up to the size of its axis, along one axis of its own."""
    known = index.known
    if known is None or known.dtype != torch.int64 or known.numel() != size or size < 2:
        return False
    return torch.equal(known.reshape(-1), torch.arange(size))
