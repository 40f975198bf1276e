"""Operators that choose numbers, or where they are written, by an index."""

from collections.abc import Sequence
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
    rows = changed(indices, (*indices.shape, 1), lambda s: Span(*(p.unsqueeze(-1) for p in s)))
    whole = changed(table, (1, table.shape[1]), lambda span: reduced(span, [0], keeps=True))
    return joined([rows, whole], shape)


def gathered(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Entries along one axis, each chosen by an index."""
    value, index = arguments["self"], arguments["index"]
    axis = axis_of(arguments["dim"], len(shape))
    whole = without(value, axis)
    sizes = tuple(1 if place == axis else size for place, size in enumerate(shape))

    def cut(span: Span) -> Span:
        return Span(*(_cut(part, sizes) for part in span))

    return joined([changed(whole, sizes, cut), index], shape)


def _cut(part: Tensor, sizes: Shape) -> Tensor:
    for axis, size in enumerate(sizes):
        if part.shape[axis] > size:
            part = part.narrow(axis, 0, size)
    return part


def scattered(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Entries along one axis, written to places that an index chooses."""
    axis = axis_of(arguments["dim"], len(shape))
    value = arguments["self"]
    written = [without(each, axis) for each in values_in(arguments) if each is not value]
    return joined([value, *written], shape)


def indexed(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Entries chosen along several axes; exactly, where an index is known."""
    value, indices = arguments["self"], arguments["indices"]
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    chosen = [index for index in indices if index is not None]
    block = _broadcast([index.shape for index in chosen])
    start = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    rest = [axis for axis in range(len(value.shape)) if axis not in axes]
    unknown = [a for a, index in zip(axes, chosen, strict=True) if index.known is None]

    def pick(span: Span) -> Span:
        span = reduced(span, unknown, keeps=True) if unknown else span
        there = [axis for axis in axes if span.first.shape[axis] > 1]
        if span.first.is_meta or not there:
            order = [*rest[:start], *axes, *rest[start:]]
            sizes = [span.first.shape[axis] for axis in rest]
            lead = [size if there else 1 for size in block]
            parts = (
                [
                    part.permute(order)
                    .reshape(-1)[:1]
                    .expand([*sizes[:start], *lead, *sizes[start:]])
                    for part in span
                ]
                if there
                else [
                    _squeezed(part, axes).reshape(
                        [*sizes[:start], *([1] * len(block)), *sizes[start:]]
                    )
                    for part in span
                ]
            )
            return Span(*parts)
        picks: list[Any] = [slice(None)] * len(value.shape)
        for axis, index in zip(axes, chosen, strict=True):
            known = index.known
            is_there = axis in there and known is not None
            picks[axis] = known if is_there else torch.zeros(block, dtype=torch.int64)
        return Span(*(part[tuple(picks)] for part in span))

    out = changed(value, shape, pick)
    after = len(rest) - start
    laid = [
        changed(
            index,
            (*index.shape, *([1] * after)),
            lambda span: Span(*(part.reshape(*part.shape, *([1] * after)) for part in span)),
        )
        for index in chosen
        if index.known is None
    ]
    return joined([out, *laid], shape)


def _squeezed(part: Tensor, axes: Sequence[int]) -> Tensor:
    for axis in sorted(axes, reverse=True):
        part = part.squeeze(axis)
    return part


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape that all of them fit."""
    count = max(map(len, shapes))
    wide = [(1,) * (count - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*wide, strict=True))


def put(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Entries written to places along several axes.

    Where one index counts all places of its axis in order, what is written there stays there.
    """
    value, indices, written = arguments["self"], arguments["indices"], arguments["values"]
    places = [value]
    block = _broadcast([index.shape for index in indices if index is not None])
    counted = [
        (axis, index)
        for axis, index in enumerate(indices)
        if index is not None and _counts(index, shape[axis], block)
    ]
    for each in [index for index in indices if index is not None] + [written]:
        sizes: list[int] = [1] * len(shape)
        if counted:
            axis, index = counted[0]
            own = len(block) - len(index.shape) + _counting_axis(index)
            sizes[axis] = shape[axis]
            back = own - len(block)

            def keep(span: Span, back: int = back, sizes: Sequence[int] = sizes) -> Span:
                count = span.first.dim()
                axes = [a for a in range(count) if a != count + back]
                span = reduced(span, axes, keeps=True) if axes else span
                size = span.first.numel()
                return Span(*(part.reshape([size if s > 1 else 1 for s in sizes]) for part in span))

            places.append(changed(each, tuple(sizes), keep))
        else:
            places.append(
                changed(each, tuple(sizes), lambda span: reduced(span, None, keeps=False))
            )
    return joined(places, shape)


def _counts(index: Value, size: int, block: Shape) -> bool:
    """Whether an index is 0, 1, ... up to the size of its axis, along one axis of its own."""
    known = index.known
    if known is None or known.dtype != torch.int64 or known.numel() != size or size < 2:
        return False
    return torch.equal(known.reshape(-1), torch.arange(size))


def _counting_axis(index: Value) -> int:
    return max(range(len(index.shape)), key=lambda axis: index.shape[axis])
