"""Operators that move, weigh or sum up the numbers of one tensor."""

import math
from typing import Any

import torch
from torch import Tensor

from ortolan.export.locality.spans import (
    NEVER,
    Arguments,
    Shape,
    Span,
    Value,
    axes_of,
    axis_of,
    changed,
    collapsed,
    fitted,
    joined,
    name_of,
    prefixed,
    reduced,
    reshaped,
    spread,
    values_in,
    without_axes,
)


def over_axes(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Sums, softmax, sorting and others: along some axes, all of the entries."""
    value, *others = values_in(arguments)
    axes = axes_of(arguments["dim"], len(value.shape))
    keeps = len(shape) == len(value.shape)
    out = changed(value, shape, lambda span: reduced(span, axes, keeps=keeps))
    return joined([out, *others], shape) if others else out


def running(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Sums and largest so far, along an axis."""
    value = values_in(arguments)[0]
    axis = axis_of(arguments["dim"], len(value.shape))
    return changed(value, shape, lambda span: prefixed(span, axis))


def viewed(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """The same numbers in another shape."""
    value = values_in(arguments)[0]
    return changed(value, shape, lambda span: reshaped(span, value.shape, shape))


def moved(operator: Any, arguments: Arguments, shape: Shape) -> Value | list[Value]:
    """Views: done to the span as they are to the tensor."""
    (name, value), *_ = arguments.items()
    others = {key: argument for key, argument in arguments.items() if key != name}

    def parts(part: Tensor) -> list[Tensor]:
        out = operator(part.expand(value.shape), **others)
        return [collapsed(each) for each in (out if isinstance(out, (list, tuple)) else [out])]

    def number(place: int, size: Shape) -> Value:
        return changed(value, size, lambda span: Span(*(parts(part)[place] for part in span)))

    proxy = operator(torch.empty(value.shape, device="meta"), **others)
    if isinstance(proxy, Tensor):
        return number(0, tuple(proxy.shape))
    return [number(place, tuple(each.shape)) for place, each in enumerate(proxy)]


def rearranged(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Flips, rolls and triangles: along the axes that an operator names, and the last two."""
    value = values_in(arguments)[0]
    count = len(value.shape)
    name = name_of(operator)
    axes = axes_of(arguments.get("dims", arguments.get("dim")), count)

    def moved(span: Span) -> Span:
        if span.first.is_meta:
            return Span(*(spread(span, value.shape, axes)))
        # Along an axis where nothing differs, nothing moves.
        return Span(*(operator(part, **_others(arguments)) for part in span))

    if name == "roll" and not arguments.get("dims"):
        flat = math.prod(value.shape)
        return changed(
            value,
            shape,
            lambda span: reshaped(
                reduced(reshaped(span, value.shape, (flat,)), None, keeps=True), (flat,), shape
            ),
        )
    return changed(value, shape, moved)


def _others(arguments: Arguments) -> dict[str, Any]:
    return {name: each for name, each in arguments.items() if not isinstance(each, Value)}


def repeated(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Copies one after the other."""
    value, times = values_in(arguments)[0], [*arguments["repeats"]]

    def repeat(span: Span) -> Span:
        span = fitted(span, (1,) * (len(times) - len(value.shape)) + value.shape)
        return Span(
            *(
                part.repeat(
                    [1 if size == 1 else n for size, n in zip(part.shape, times, strict=True)]
                )
                for part in span
            )
        )

    return changed(value, shape, repeat)


def padded(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Constants before and after, or fewer numbers where a size is negative."""
    value, pads = values_in(arguments)[0], [*arguments["pad"]]
    count = len(value.shape)
    axes = [count - 1 - place // 2 for place, size in enumerate(pads) if size]

    def pad(span: Span) -> Span:
        wide = spread(span, value.shape, axes)
        kept = [size if count - 1 - place // 2 in axes else 0 for place, size in enumerate(pads)]
        fill = (NEVER, -NEVER)
        return Span(
            *(
                torch.constant_pad_nd(part, kept, number)
                for part, number in zip(wide, fill, strict=True)
            )
        )

    return changed(value, shape, pad)


def normed(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """A norm over the last axes."""
    value, *others = values_in(arguments)
    count = len(value.shape)
    axes = list(range(count - len(arguments["normalized_shape"]), count))
    return joined([without_axes(value, axes), *others], shape)


def group_normed(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """A norm of all that the first axis has one of."""
    value = values_in(arguments)[0]
    return without_axes(value, list(range(1, len(value.shape))))


def batch_normed(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """By fixed statistics where it does not train, which are constants."""
    value = values_in(arguments)[0]
    name = name_of(operator)
    if "no_training" in name or not arguments.get("training", arguments.get("train", True)):
        return changed(value, shape, lambda span: span)
    axes = [axis for axis in range(len(value.shape)) if axis != 1]
    return without_axes(value, axes)


def pooled(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """A window over the last axes, as if it were as long as they are."""
    value = values_in(arguments)[0]
    size = arguments.get("kernel_size", arguments.get("output_size", [1]))
    count = len(value.shape)
    axes = list(range(count - (1 if isinstance(size, int) else len(size)), count))
    return changed(value, shape, lambda span: reduced(span, axes, keeps=True))


def convolved(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """A window over the last axes, and all of the channels."""
    value, weight = arguments["input"], arguments["weight"]
    count = len(value.shape) - 2
    strides, pads, dilations = (
        [*arguments[name]] * (count if len(arguments[name]) == 1 else 1)
        for name in ("stride", "padding", "dilation")
    )

    def window(span: Span) -> Span:
        span = reduced(span, [1], keeps=True)
        first, last = span
        for place in range(count):
            axis, taps = place + 2, weight.shape[place + 2]
            if first.shape[axis] == 1:
                continue
            reach = (taps - 1) * dilations[place] + 1
            pad = [0, 0] * (count - 1 - place) + [pads[place]] * 2
            first, last = (
                torch.constant_pad_nd(part, pad, number).unfold(axis, reach, strides[place])
                for part, number in ((first, NEVER), (last, -NEVER))
            )
            first, last = first.amin(-1), last.amax(-1)
        return Span(first, last)

    return changed(value, shape, window)
