"""What each operator of a traced graph makes of the tokens and texts that its inputs come from.

An operator is known by what it does along which axes. One that is in no table keeps its axes where
its sizes allow that, and hides what it takes where not: numbers have to show it (`perturb`).
"""

from collections.abc import Sequence
from typing import Any

import torch

from ortolan.export.locality import indexing, joining, unary
from ortolan.export.locality.spans import (
    Arguments,
    Rule,
    Shape,
    Span,
    Value,
    changed,
    differs,
    joined,
    name_of,
    reduced,
    unknown,
    values_in,
)


def apply(operator: Any, arguments: Arguments, shape: Shape) -> Value | list[Value]:
    """What an operator gives.

    Args:
        operator: of PyTorch.
        arguments: by name.
        shape: of what it gives; of several, of the first.
    """
    name = name_of(operator)
    values = values_in(arguments)
    if not values:
        return Value(shape=shape, places=differs(shape))
    if name in _RULES:
        return _RULES[name](operator, arguments, shape)
    if torch.Tag.pointwise in getattr(operator, "tags", ()) or name in _POINTWISE:
        return joined(values, shape)
    if name in _UNIFORM:
        return Value(shape=shape, places=differs(shape, ()))
    if "dim" in arguments and isinstance(arguments["dim"], (int, list, tuple, type(None))):
        return unary.over_axes(operator, arguments, shape)
    return _unknown(values, shape)


def _unknown(values: Sequence[Value], shape: Shape) -> Value:
    """As the inputs are, where what an operator gives has their axes; else nothing is known of it.

    Axes are counted from the first: an operator without a rule works on the last.
    """
    made = [_aligned(value, shape) for value in values]
    known = [value for value in made if value is not None]
    return joined(known, shape) if len(known) == len(made) else unknown(shape)


def _aligned(value: Value, shape: Shape) -> Value | None:
    """A value with axes added or joined at the end; None where the first ones differ."""
    count = len(shape)
    same = [a == b for a, b in zip(value.shape, shape, strict=False)]
    spans = [span for span in (value.texts, value.tokens, value.places) if span is not None]
    if not all(
        is_same or all(span.first.shape[axis] == 1 for span in spans)
        for axis, is_same in enumerate(same)
    ):
        return None

    def align(span: Span) -> Span:
        ends = list(range(count, span.first.dim()))
        span = reduced(span, ends, keeps=False) if ends else span
        more = [1] * (count - span.first.dim())
        return Span(*(part.reshape(*part.shape, *more) for part in span))

    return changed(value, shape, align)


WITH_BIAS = ("addmm", "baddbmm", "addbmm", "addmv")
_POINTWISE = (
    *("clone", "_to_copy", "contiguous", "to", "native_dropout", "_prelu_kernel"),
    *("lift_fresh_copy", "_adaptive_avg_pool2d_backward", "fill", "masked_fill", "tril", "triu"),
)
_UNIFORM = (
    *("full_like", "zeros_like", "ones_like", "empty_like", "new_zeros", "new_ones", "new_full"),
    *("new_empty", "new_empty_strided"),
)
_RULES: dict[str, Rule] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "flatten", "unflatten"), unary.viewed),
    **dict.fromkeys(
        (
            *("permute", "transpose", "t", "slice", "select", "unsqueeze", "squeeze", "expand"),
            *("split", "split_with_sizes", "unbind", "diagonal", "alias", "detach", "narrow"),
            *("unfold", "chunk", "squeeze_copy", "split_with_sizes_copy", "unbind_copy"),
        ),
        unary.moved,
    ),
    **dict.fromkeys(("flip", "roll"), unary.rearranged),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"), unary.running),
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot", *WITH_BIAS), joining.product),
    **dict.fromkeys(
        ("native_layer_norm", "_fused_rms_norm", "rms_norm", "layer_norm"), unary.normed
    ),
    **dict.fromkeys(("native_group_norm", "group_norm"), unary.group_normed),
    **dict.fromkeys(
        (
            *("_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
            *("_native_batch_norm_legit_functional", "native_batch_norm", "batch_norm"),
        ),
        unary.batch_normed,
    ),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce", "index_add"), indexing.scattered),
    **dict.fromkeys(("index_put", "_unsafe_index_put"), indexing.put),
    **dict.fromkeys(("index", "_unsafe_index"), indexing.indexed),
    **dict.fromkeys(
        (
            *("_scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_attention"),
            *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention"),
        ),
        joining.attended,
    ),
    **dict.fromkeys(("slice_scatter", "select_scatter"), joining.slice_written),
    **dict.fromkeys(
        (
            *("avg_pool1d", "avg_pool2d", "max_pool2d_with_indices", "_adaptive_avg_pool2d"),
            *("avg_pool3d", "max_pool3d_with_indices", "upsample_linear1d", "upsample_nearest1d"),
        ),
        unary.pooled,
    ),
    "copy": joining.copied,
    "cat": joining.laid_out,
    "repeat": unary.repeated,
    "constant_pad_nd": unary.padded,
    "convolution": unary.convolved,
    "embedding": indexing.embedded,
    "gather": indexing.gathered,
    "any": unary.over_axes,
}
