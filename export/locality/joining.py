"""Rules for operators that put several tensors together."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ortolan.export.locality.spans import (
    NEVER,
    Arguments,
    Shape,
    Span,
    Value,
    axis_of,
    changed,
    joined,
    name_of,
    reduced,
    spread,
    values_in,
    without,
    without_axes,
)


def laid_out(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Tensors one after the other along an axis."""
    values = [value for value in arguments["tensors"] if math.prod(value.shape) > 0]
    axis = axis_of(arguments.get("dim", 0), len(shape))
    wide = [
        [None if span is None else spread(span, value.shape, [axis]) for span in value.spans]
        for value in values
    ]
    rows, tokens, places = (_laid(spans, values, axis) for spans in zip(*wide, strict=True))
    # Places along other axes stay with the rows and tokens that they are joined to.
    whole = joined([without(value, axis) for value in values], shape)
    return Value(
        shape=shape,
        rows=rows,
        tokens=tokens,
        places=places if whole.tokens is None else None,
        fresh=whole.fresh,
        spent=whole.spent,
    )


def _laid(spans: Sequence[Span | None], values: Sequence[Value], axis: int) -> Span | None:
    """Spans one after the other along an axis."""
    device = next((span.first.device for span in spans if span is not None), None)
    if device is None:
        return None
    filled = []
    for span, value in zip(spans, values, strict=True):
        size = [value.shape[axis] if place == axis else 1 for place in range(len(value.shape))]
        never = torch.full(size, NEVER, dtype=torch.int32, device=device)
        filled.append(span or Span(never, -never))
    count = filled[0].first.dim()
    sizes = [max(span.first.shape[place] for span in filled) for place in range(count)]
    first, last = (
        torch.cat(
            [p.expand([*sizes[:axis], p.shape[axis], *sizes[axis + 1 :]]) for p in parts], axis
        )
        for parts in zip(*filled, strict=True)
    )
    return Span(first, last)


def product(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Products of matrices `(..., M, K)` and `(..., K, N)`, perhaps with a bias."""
    *bias, left, right = values_in(arguments)
    rows = without(left, len(left.shape) - 1)
    columns = without(right, max(len(right.shape) - 2, 0))
    if len(right.shape) == 1:
        rows = changed(rows, left.shape[:-1], lambda span: span.map(lambda p: p.squeeze(-1)))
        columns = changed(columns, (), lambda span: span.map(lambda p: p.squeeze(0)))
    return joined([rows, columns, *bias], shape)


def copied(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Numbers written over all of another tensor."""
    return joined([arguments["src"]], shape)


def slice_written(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Numbers written over a part of another tensor along one axis."""
    value, part = arguments["self"], arguments["src"]
    axis = axis_of(arguments.get("dim", 0), len(shape))
    size = shape[axis]
    if name_of(operator) == "select_scatter":
        unsqueezed = (*part.shape[:axis], 1, *part.shape[axis:])
        part = changed(part, unsqueezed, lambda span: span.map(lambda p: p.unsqueeze(axis)))
        first = axis_of(arguments["index"], size)
        cut = slice(first, first + 1)
    else:
        cut = slice(*(arguments.get(name) for name in ("start", "end", "step")))
    # Lay out both, and take the numbers of the part where it is written.
    order = torch.arange(size)
    order[cut] = torch.arange(size, size + part.shape[axis])
    longer = (*shape[:axis], size + part.shape[axis], *shape[axis + 1 :])
    both = laid_out(operator, {"tensors": [value, part], "dim": axis}, longer)

    def pick(span: Span) -> Span:
        if span.first.shape[axis] == 1:
            return span
        return span.map(lambda p: p.index_select(axis, order.to(p.device)))

    return changed(both, shape, pick)


def attended(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """PyTorch's own attention: every query depends on all keys and values."""
    query, *others = values_in(arguments)[:3]
    whole = []
    for value in others:
        axes = [len(value.shape) - 2, len(value.shape) - 1]
        sizes = tuple(1 if axis in axes else size for axis, size in enumerate(value.shape))
        whole.append(changed(value, sizes, partial(reduced, axes=axes, keeps=True)))
    rows = without_axes(query, [len(query.shape) - 1])
    return joined([changed(rows, shape, lambda span: span), *whole], shape)
