"""Operators that put several tensors together."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

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
    values = [each for each in arguments["tensors"] if math.prod(each.shape) > 0]
    axis = axis_of(arguments.get("dim", 0), len(shape))
    wide = []
    for each in values:
        own, spans = each.shape, [each.texts, each.tokens, each.places]
        wide.append([None if span is None else spread(span, own, [axis]) for span in spans])
    texts, tokens, places = (
        _laid([spans[kind] for spans in wide], values, axis) for kind in range(3)
    )
    # Along other axes, what is joined to a text or a token keeps its places.
    whole = joined([without(each, axis) for each in values], shape)
    return Value(
        shape=shape,
        texts=texts,
        tokens=tokens,
        places=places if whole.tokens is None else None,
        fresh=whole.fresh,
        spent=whole.spent,
    )


def _laid(spans: Sequence[Span | None], values: Sequence[Value], axis: int) -> Span | None:
    """Spans one after the other along an axis."""
    there = [span for span in spans if span is not None]
    if not there:
        return None
    device = there[0].first.device
    filled = []
    for span, value in zip(spans, values, strict=True):
        size = [value.shape[axis] if place == axis else 1 for place in range(len(value.shape))]
        none = Span(
            *(
                torch.full(size, number, dtype=torch.int32, device=device)
                for number in (NEVER, -NEVER)
            )
        )
        filled.append(span or none)
    sizes = [
        max(span.first.shape[place] for span in filled) for place in range(filled[0].first.dim())
    ]
    out = []
    for kind in range(2):
        parts = [
            span[kind].expand([*sizes[:axis], span[kind].shape[axis], *sizes[axis + 1 :]])
            for span in filled
        ]
        out.append(torch.cat(parts, axis))
    return Span(*out)


def product(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Products of matrices: `(..., M, K)` with `(..., K, N)`, and perhaps a bias."""
    *bias, left, right = values_in(arguments)
    rows = without(left, len(left.shape) - 1)
    columns = without(right, max(len(right.shape) - 2, 0))
    if len(right.shape) == 1:
        rows = changed(rows, left.shape[:-1], lambda span: Span(*(p.squeeze(-1) for p in span)))
        columns = changed(columns, (), lambda span: Span(*(p.squeeze(0) for p in span)))
    return joined([rows, columns, *bias], shape)


def copied(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Numbers written over others."""
    return joined([arguments["src"]], shape)


def slice_written(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """A part along one axis, written over that of another tensor."""
    value, part = arguments["self"], arguments["src"]
    axis = axis_of(arguments.get("dim", 0), len(shape))
    if name_of(operator) == "select_scatter":
        part = changed(
            part,
            (*part.shape[:axis], 1, *part.shape[axis:]),
            lambda span: Span(*(each.unsqueeze(axis) for each in span)),
        )
        first = axis_of(arguments["index"], shape[axis])
        cut = slice(first, first + 1)
    else:
        cut = slice(*(arguments.get(name) for name in ("start", "end", "step")))
    size = shape[axis]
    order = torch.arange(size)
    order[cut] = torch.arange(size, size + part.shape[axis])
    both = laid_out(operator, {"tensors": [value, part], "dim": axis}, _longer(shape, part, axis))
    return changed(both, shape, lambda span: _ordered(span, axis, order))


def _longer(shape: Shape, part: Value, axis: int) -> Shape:
    return (*shape[:axis], shape[axis] + part.shape[axis], *shape[axis + 1 :])


def _ordered(span: Span, axis: int, order: Tensor) -> Span:
    if span.first.shape[axis] == 1:
        return span
    return Span(*(part.index_select(axis, order.to(part.device)) for part in span))


def attended(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """PyTorch's own attention: queries with all of the keys."""
    values = values_in(arguments)[:3]
    query, *others = values
    rows = without_axes(query, [len(query.shape) - 1])
    axes = [-2, -1]
    wide = []
    for each in others:
        own = [len(each.shape) + axis for axis in axes]
        sizes = tuple(1 if axis in own else size for axis, size in enumerate(each.shape))
        wide.append(changed(each, sizes, partial(reduced, axes=own, keeps=True)))
    return joined([changed(rows, shape, lambda span: span), *wide], shape)
