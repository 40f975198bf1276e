"""How every operator passes on the rows and tokens that its inputs come from.

The tables say what an operator does along which axes. An operator in no table keeps its axes if the
sizes allow that. Otherwise nothing is known of its result, and the numbers have to show what it
does (`perturbation`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ortolan.export.locality import indexing, joining, unary
from ortolan.export.locality.spans import (
    Arguments,
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

Rule = Callable[[Any, Arguments, Shape], Value | list[Value]]
"""From an operator, its arguments and the shape of its (first) output, to its outputs."""


def apply(operator: Any, arguments: Arguments, shape: Shape) -> Value | list[Value]:
    """The outputs of an operator.

    Args:
        operator: of PyTorch.
        arguments: by name.
        shape: of its (first) output.
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
    return _without_rule(values, shape)


def _without_rule(values: Sequence[Value], shape: Shape) -> Value:
    """An output with the axes of its inputs, if it has them; else nothing is known of it.

    Axes are matched from the first: an operator without a rule works on the last ones.
    """
    aligned = [_aligned(value, shape) for value in values]
    known = [value for value in aligned if value is not None]
    return joined(known, shape) if len(known) == len(aligned) else unknown(shape)


def _aligned(value: Value, shape: Shape) -> Value | None:
    """A value with axes added or joined at the end; None if a differing axis changes its size."""
    count = len(shape)
    same = [a == b for a, b in zip(value.shape, shape, strict=False)]
    spans = [span for span in value.spans if span is not None]
    if not all(
        is_same or all(span.first.shape[axis] == 1 for span in spans)
        for axis, is_same in enumerate(same)
    ):
        return None

    def align(span: Span) -> Span:
        ends = list(range(count, span.first.dim()))
        span = reduced(span, ends, keeps=False) if ends else span
        more = [1] * (count - span.first.dim())
        return span.map(lambda part: part.reshape([*part.shape, *more]))

    return changed(value, shape, align)


_POINTWISE = (
    *("clone", "_to_copy", "contiguous", "to", "native_dropout", "_prelu_kernel"),
    *("lift_fresh_copy", "_adaptive_avg_pool2d_backward", "fill", "masked_fill", "tril", "triu"),
)
_UNIFORM = (
    *("full_like", "zeros_like", "ones_like", "empty_like", "new_zeros", "new_ones", "new_full"),
    *("new_empty", "new_empty_strided"),
)
_NAMES: dict[Rule, str] = {
    unary.viewed: "view _unsafe_view reshape flatten unflatten",
    unary.moved: "permute transpose t slice select unsqueeze squeeze expand split split_with_sizes "
    "unbind diagonal alias detach narrow unfold chunk squeeze_copy split_with_sizes_copy "
    "unbind_copy",
    unary.rearranged: "flip roll",
    unary.running: "cumsum cumprod cummax cummin logcumsumexp",
    unary.normed: "native_layer_norm _fused_rms_norm rms_norm layer_norm",
    unary.group_normed: "native_group_norm group_norm",
    unary.batch_normed: "_native_batch_norm_legit _native_batch_norm_legit_no_training "
    "_native_batch_norm_legit_functional native_batch_norm batch_norm",
    unary.pooled: "avg_pool1d avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d avg_pool3d "
    "max_pool3d_with_indices upsample_linear1d upsample_nearest1d",
    unary.repeated: "repeat",
    unary.padded: "constant_pad_nd",
    unary.convolved: "convolution",
    unary.over_axes: "any",
    joining.product: "mm bmm matmul mv dot addmm baddbmm addbmm addmv",
    joining.attended: "scaled_dot_product_attention _scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention",
    joining.slice_written: "slice_scatter select_scatter",
    joining.copied: "copy",
    joining.laid_out: "cat",
    indexing.scattered: "scatter scatter_add scatter_reduce index_add",
    indexing.put: "index_put _unsafe_index_put",
    indexing.indexed: "index _unsafe_index",
    indexing.embedded: "embedding",
    indexing.gathered: "gather",
}
_RULES = {name: rule for rule, names in _NAMES.items() for name in names.split()}
