"""Rules for operators that move, weigh or sum the numbers of one tensor."""

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
    """Sums, softmax, sorting and the like: every number depends on all along some axes."""
    value, *others = values_in(arguments)
    axes = axes_of(arguments.get("dim"), len(value.shape))
    keeps = len(shape) == len(value.shape)
    out = changed(value, shape, lambda span: reduced(span, axes, keeps=keeps))
    return joined([out, *others], shape) if others else out


def running(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Cumulative operators: every number depends on those before it along an axis."""
    value = values_in(arguments)[0]
    axis = axis_of(arguments["dim"], len(value.shape))
    return changed(value, shape, lambda span: prefixed(span, axis))


def viewed(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """The same numbers in another shape."""
    value = values_in(arguments)[0]
    return changed(value, shape, lambda span: reshaped(span, value.shape, shape))


def moved(operator: Any, arguments: Arguments, shape: Shape) -> Value | list[Value]:
    """Views: the operator is applied to the spans themselves."""
    (name, value), *_ = arguments.items()
    others = {key: argument for key, argument in arguments.items() if key != name}

    def parts(part: Tensor) -> list[Tensor]:
        out = operator(part.expand(value.shape), **others)
        return [collapsed(o) for o in (out if isinstance(out, (list, tuple)) else [out])]

    def output(number: int, size: Shape) -> Value:
        return changed(value, size, lambda span: span.map(lambda part: parts(part)[number]))

    proxy = operator(torch.empty(value.shape, device="meta"), **others)
    if isinstance(proxy, Tensor):
        return output(0, tuple(proxy.shape))
    return [output(number, tuple(out.shape)) for number, out in enumerate(proxy)]


def rearranged(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Flips and rolls along the named axes; a roll without axes is one of the flat tensor."""
    value = values_in(arguments)[0]
    dims = arguments.get("dims", arguments.get("dim"))
    if name_of(operator) == "roll" and not arguments.get("dims"):
        flat = (math.prod(value.shape),)

        def roll(span: Span) -> Span:
            span = reduced(reshaped(span, value.shape, flat), None, keeps=True)
            return reshaped(span, flat, shape)

        return changed(value, shape, roll)
    others = {name: part for name, part in arguments.items() if not isinstance(part, Value)}

    def rearrange(span: Span) -> Span:
        if span.first.is_meta:
            return spread(span, value.shape, axes_of(dims, len(value.shape)))
        # Along an axis where nothing differs, nothing moves.
        return span.map(lambda part: operator(part, **others))

    return changed(value, shape, rearrange)


def repeated(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Copies, one after the other."""
    value, times = values_in(arguments)[0], [*arguments["repeats"]]

    def repeat(span: Span) -> Span:
        span = fitted(span, (1,) * (len(times) - len(value.shape)) + value.shape)
        sizes = span.first.shape
        counts = [1 if size == 1 else n for size, n in zip(sizes, times, strict=True)]
        return span.map(lambda part: part.repeat(counts))

    return changed(value, shape, repeat)


def padded(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """Constants before and after; a negative size cuts numbers off."""
    value, pads = values_in(arguments)[0], [*arguments["pad"]]
    count = len(value.shape)
    axes = [count - 1 - place // 2 for place, size in enumerate(pads) if size]
    sizes = [size if count - 1 - place // 2 in axes else 0 for place, size in enumerate(pads)]

    def pad(span: Span) -> Span:
        first, last = spread(span, value.shape, axes)
        return Span(
            torch.constant_pad_nd(first, sizes, NEVER), torch.constant_pad_nd(last, sizes, -NEVER)
        )

    return changed(value, shape, pad)


def normed(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """A norm over the last axes."""
    value, *others = values_in(arguments)
    count = len(value.shape)
    axes = list(range(count - len(arguments["normalized_shape"]), count))
    return joined([without_axes(value, axes), *others], shape)


def group_normed(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """A norm over every axis but the first."""
    value = values_in(arguments)[0]
    return without_axes(value, list(range(1, len(value.shape))))


def batch_normed(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """A norm over every axis but the second, or with fixed statistics outside of training."""
    value = values_in(arguments)[0]
    name = name_of(operator)
    if "no_training" in name or not arguments.get("training", arguments.get("train", True)):
        return changed(value, shape, lambda span: span)
    return without_axes(value, [axis for axis in range(len(value.shape)) if axis != 1])


def pooled(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """A window over the last axes, taken to be as long as they are."""
    value = values_in(arguments)[0]
    size = arguments.get("kernel_size", arguments.get("output_size", [1]))
    count = len(value.shape)
    axes = list(range(count - (1 if isinstance(size, int) else len(size)), count))
    return changed(value, shape, lambda span: reduced(span, axes, keeps=True))


def convolved(operator: Any, arguments: Arguments, shape: Shape) -> Value:
    """A window over the last axes, and all channels."""
    value, weight = arguments["input"], arguments["weight"]
    count = len(value.shape) - 2
    strides, pads, dilations = (
        [*arguments[name]] * (count if len(arguments[name]) == 1 else 1)
        for name in ("stride", "padding", "dilation")
    )

    def slide(span: Span) -> Span:
        first, last = reduced(span, [1], keeps=True)
        for place in range(count):
            axis, taps = place + 2, weight.shape[place + 2]
            if first.shape[axis] == 1:
                continue
            width = (taps - 1) * dilations[place] + 1
            pad = [0, 0] * (count - 1 - place) + [pads[place]] * 2
            first, last = (
                torch.constant_pad_nd(part, pad, number).unfold(axis, width, strides[place])
                for part, number in ((first, NEVER), (last, -NEVER))
            )
            first, last = first.amin(-1), last.amax(-1)
        return Span(first, last)

    return changed(value, shape, slide)
