"""Tensors whose rows are read only when needed.

transformers describes how published tensors become its model's weights as code that runs on
tensors: it stacks experts, and splits or joins projections. Run on lazy tensors, that code reads
nothing. Its results are lazy tensors that know which rows of the originals they need:

    cat([a, b]).chunk(2)[1].rows(0, 10)      reads ten rows, of a, b or both
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

Rows = Callable[[int, int], Tensor]
"""Computes rows `[start:stop]` of a tensor."""

aten = torch.ops.aten


class LazyTensor(Tensor):
    """A float tensor whose rows are computed on demand.

    Attributes:
        meta: its shape, on the device "meta".
        rows: computes its rows.
        is_sliced: whether some rows cost less than all.
    """

    meta: Tensor
    rows: Rows
    is_sliced: bool

    @staticmethod
    def __new__(cls, meta: Tensor, rows: Rows, is_sliced: bool) -> "LazyTensor":
        """Make a tensor without memory."""
        tensor: LazyTensor = Tensor._make_wrapper_subclass(
            cls, meta.shape, strides=meta.stride(), dtype=meta.dtype, device=torch.device("cpu")
        )
        return tensor

    def __init__(self, meta: Tensor, rows: Rows, is_sliced: bool) -> None:
        self.meta = meta
        self.rows = rows
        self.is_sliced = is_sliced

    @classmethod
    def read(cls, shape: Sequence[int], rows: Rows) -> "LazyTensor":
        """A tensor of a file."""
        return cls(torch.empty(tuple(shape), device="meta"), rows, True)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Apply an operation without reading anything, unless it does not return a tensor."""
        kwargs = dict(kwargs or {})
        if not any("Tensor" in str(output.type) for output in func._schema.returns):
            return _applied(func, args, kwargs)
        shapes = func(*tree_map(_meta, args), **tree_map(_meta, kwargs))
        if not isinstance(shapes, (list, tuple)):
            return _output(func, args, kwargs, 0, shapes)
        return [_output(func, args, kwargs, place, meta) for place, meta in enumerate(shapes)]


def rows_of(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Rows of a tensor, lazy or not."""
    return tensor.rows(start, stop) if isinstance(tensor, LazyTensor) else tensor[start:stop]


def _meta(value: object) -> object:
    if not isinstance(value, Tensor):
        return torch.device("meta") if isinstance(value, torch.device) else value
    return value.meta if isinstance(value, LazyTensor) else value.to("meta")


def _whole(value: object) -> object:
    if not isinstance(value, LazyTensor):
        return value
    return value.rows(0, value.shape[0]) if value.dim() else value.rows(0, 1).reshape(())


def _applied(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Read all inputs of an operation and apply it."""
    whole = tree_map(_whole, list(args))
    if func in _RESHAPES:
        return whole[0].reshape(whole[1])  # rows that were read may have other strides
    return func(*whole, **tree_map(_whole, dict(kwargs)))


def _output(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], place: int, meta: Tensor
) -> LazyTensor:
    """One output of an operation."""
    rows = None
    if meta.dim() and not kwargs.get("out"):
        rows = (
            _joined(func, args, meta)
            or _cut(func, args, place)
            or _by_row(func, args, kwargs, place, meta)
        )
    if rows is not None:
        return LazyTensor(meta, rows, all(t.is_sliced for t in _tensors(args)))

    def some(start: int, stop: int) -> Tensor:
        outputs = _applied(func, args, kwargs)
        whole: Tensor = outputs[place] if isinstance(outputs, (list, tuple)) else outputs
        return whole[start:stop] if meta.dim() else whole

    return LazyTensor(meta, some, False)


def _tensors(args: Sequence[Any]) -> list[LazyTensor]:
    tensors: list[LazyTensor] = []
    tree_map(lambda leaf: tensors.append(leaf) if isinstance(leaf, LazyTensor) else None, [*args])
    return tensors


def _axis(args: Sequence[Any], place: int, dims: int) -> int:
    """An axis among the arguments; 0 if it is left out."""
    axis: int = args[place] if len(args) > place else 0
    return axis % max(dims, 1)


def _joined(func: Any, args: Sequence[Any], meta: Tensor) -> Rows | None:
    """Tensors stacked or concatenated along the first axis."""
    if func not in (aten.stack.default, aten.cat.default) or _axis(args, 1, meta.dim()):
        return None
    parts: Sequence[Tensor] = args[0]

    def stacked(start: int, stop: int) -> Tensor:
        return torch.stack([rows_of(part, 0, part.shape[0]) for part in parts[start:stop]])

    def concatenated(start: int, stop: int) -> Tensor:
        pieces, offset = [], 0
        for part in parts:
            first, last = max(start - offset, 0), min(stop - offset, part.shape[0])
            if first < last:
                pieces.append(rows_of(part, first, last))
            offset += part.shape[0]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    return stacked if func is aten.stack.default else concatenated


def _cut(func: Any, args: Sequence[Any], place: int) -> Rows | None:
    """A slice of a tensor's rows, or one of the parts that they are split into."""
    whole = args[0]
    if not isinstance(whole, LazyTensor):
        return None
    dims = whole.dim()
    if func is aten.slice.Tensor and not _axis(args, 1, dims) and (args[4:] or (1,))[0] == 1:
        offset = slice((args[2:] or (None,))[0], None).indices(whole.shape[0])[0]
    elif func is aten.split.Tensor and not _axis(args, 2, dims):
        offset = place * args[1]
    elif func is aten.split_with_sizes.default and not _axis(args, 2, dims):
        offset = sum(args[1][:place])
    else:
        return None
    return lambda start, stop: whole.rows(offset + start, offset + stop)


_AXIS_PLACES = {
    aten.slice.Tensor: 1,
    aten.split.Tensor: 2,
    aten.split_with_sizes.default: 2,
    aten.select.int: 1,
    aten.squeeze.dim: 1,
    aten.cat.default: 1,
    aten.stack.default: 1,
}
"""Operations along one axis, and the place of the axis among the arguments."""

_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)

_COPIES = (aten.clone.default, aten._to_copy.default, aten.alias.default, aten.detach.default)


def _by_row(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], place: int, meta: Tensor
) -> Rows | None:
    """An operation that treats every row alike; None for any other."""
    tensors = _tensors(args)
    length = meta.shape[0]
    if not tensors or any(t.dim() == 0 or t.shape[0] != length for t in tensors):
        return None
    if not _is_by_row(func, args, tensors, meta):
        return None

    def rows(start: int, stop: int) -> Tensor:
        def part(value: object) -> object:
            return value.rows(start, stop) if isinstance(value, LazyTensor) else value

        parts = tree_map(part, list(args))
        if func in _RESHAPES:
            return parts[0].reshape(stop - start, *meta.shape[1:])  # type: ignore[no-any-return]
        if func in _COPIES:
            return parts[0]  # type: ignore[no-any-return]
        outputs = func(*parts, **kwargs)
        return outputs[place] if isinstance(outputs, (list, tuple)) else outputs  # type: ignore[no-any-return]

    return rows


def _is_by_row(func: Any, args: Sequence[Any], tensors: Sequence[Tensor], meta: Tensor) -> bool:
    """Whether an operation of tensors with equally many rows treats every row alike."""
    dims = tensors[0].dim()
    if func in _AXIS_PLACES:
        return _axis(args, _AXIS_PLACES[func], dims) != 0
    if func is aten.transpose.int:
        return 0 not in (args[1] % dims, args[2] % dims)
    if func is aten.permute.default:
        return bool(args[1][0] % dims == 0)
    if func in _RESHAPES or func in _COPIES:
        return True
    return torch.Tag.pointwise in func.tags and all(t.shape == meta.shape for t in tensors)
