"""Tensors that are read when their rows are asked for.

transformers says how a published tensor becomes a weight of its model as code that runs on
tensors: experts are stacked, projections split or joined. Run on these tensors, that code reads
nothing; it makes others, which know the rows to read for some of theirs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

Rows = Callable[[int, int], Tensor]

aten = torch.ops.aten


class LazyTensor(Tensor):
    """A float tensor whose rows are computed when they are asked for.

    Attributes:
        meta: its shape, on the device "meta".
        rows: its rows `[start:stop]`.
        is_sliced: some rows cost less than all of them.
    """

    meta: Tensor
    rows: Rows
    is_sliced: bool

    @staticmethod
    def __new__(cls, meta: Tensor, rows: Rows, is_sliced: bool) -> "LazyTensor":
        """A tensor without memory."""
        made: LazyTensor = Tensor._make_wrapper_subclass(
            cls, meta.shape, strides=meta.stride(), dtype=meta.dtype, device=torch.device("cpu")
        )
        return made

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
        """What an operation on lazy tensors gives, with nothing read."""
        given = dict(kwargs or {})
        if not any("Tensor" in str(each.type) for each in func._schema.returns):
            return _applied(func, args, given)
        shapes = func(*tree_map(_meta, args), **tree_map(_meta, given))
        outputs = list(shapes) if isinstance(shapes, (list, tuple)) else [shapes]
        made = [_output(func, args, given, place, out) for place, out in enumerate(outputs)]
        return made if isinstance(shapes, (list, tuple)) else made[0]


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
    """An operation on what is read for it, all of it."""
    given = tree_map(_whole, list(args))
    if func in _SHAPED:
        return given[0].reshape(given[1])  # rows that were read may have other strides
    return func(*given, **tree_map(_whole, dict(kwargs)))


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
        made = _applied(func, args, kwargs)
        whole: Tensor = made[place] if isinstance(made, (list, tuple)) else made
        return whole[start:stop] if meta.dim() else whole

    return LazyTensor(meta, some, False)


def _tensors(args: Sequence[Any]) -> list[LazyTensor]:
    found: list[LazyTensor] = []
    tree_map(lambda each: found.append(each) if isinstance(each, LazyTensor) else None, list(args))
    return found


def _axis(args: Sequence[Any], place: int, dims: int) -> int:
    """An axis among the arguments, 0 where it is left out."""
    axis: int = args[place] if len(args) > place else 0
    return axis % max(dims, 1)


def _joined(func: Any, args: Sequence[Any], meta: Tensor) -> Rows | None:
    """Tensors stacked, or put one after the other, along the first axis."""
    if func not in (aten.stack.default, aten.cat.default) or _axis(args, 1, meta.dim()):
        return None
    parts: Sequence[Tensor] = args[0]
    is_stack = func is aten.stack.default

    def rows(start: int, stop: int) -> Tensor:
        if is_stack:
            return torch.stack([rows_of(each, 0, each.shape[0]) for each in parts[start:stop]])
        found, offset = [], 0
        for each in parts:
            first, last = max(start - offset, 0), min(stop - offset, each.shape[0])
            if first < last:
                found.append(rows_of(each, first, last))
            offset += each.shape[0]
        return found[0] if len(found) == 1 else torch.cat(found)

    return rows


def _cut(func: Any, args: Sequence[Any], place: int) -> Rows | None:
    """Some rows of a tensor: a slice, or one of the parts that it is split into."""
    whole = args[0]
    if not isinstance(whole, LazyTensor):
        return None
    dims = whole.dim()
    if func is aten.slice.Tensor and not _axis(args, 1, dims) and (args[4:] or (1,))[0] == 1:
        offset = min(max((args[2:] or (0,))[0] or 0, 0), whole.shape[0])
    elif func is aten.split.Tensor and not _axis(args, 2, dims):
        offset = place * args[1]
    elif func is aten.split_with_sizes.default and not _axis(args, 2, dims):
        offset = sum(args[1][:place])
    else:
        return None
    return lambda start, stop: whole.rows(offset + start, offset + stop)


_LATER_AXIS = {
    aten.slice.Tensor: 1,
    aten.split.Tensor: 2,
    aten.split_with_sizes.default: 2,
    aten.select.int: 1,
    aten.squeeze.dim: 1,
    aten.cat.default: 1,
    aten.stack.default: 1,
}
"""Operations along one axis, and where the axis is among the arguments."""

_SHAPED = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)

_COPIES = (aten.clone.default, aten._to_copy.default, aten.alias.default, aten.detach.default)


def _by_row(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], place: int, meta: Tensor
) -> Rows | None:
    """An operation that does the same to every row; None for any other."""
    tensors = _tensors(args)
    length = meta.shape[0]
    if not tensors or any(each.dim() == 0 or each.shape[0] != length for each in tensors):
        return None
    dims = tensors[0].dim()
    match func:
        case _ if func in _LATER_AXIS:
            by_row = _axis(args, _LATER_AXIS[func], dims) != 0
        case aten.transpose.int:
            by_row = 0 not in (args[1] % dims, args[2] % dims)
        case aten.permute.default:
            by_row = args[1][0] % dims == 0
        case _ if func in _SHAPED:
            by_row = True
        case _:
            same = all(each.shape == meta.shape for each in tensors)
            by_row = func in _COPIES or (torch.Tag.pointwise in func.tags and same)
    if not by_row:
        return None

    def rows(start: int, stop: int) -> Tensor:
        def part(value: object) -> object:
            return value.rows(start, stop) if isinstance(value, LazyTensor) else value

        given = tree_map(part, list(args))
        if func in _SHAPED:
            return given[0].reshape(stop - start, *meta.shape[1:])  # type: ignore[no-any-return]
        if func in _COPIES:
            return given[0]  # type: ignore[no-any-return]
        made = func(*given, **kwargs)
        return made[place] if isinstance(made, (list, tuple)) else made  # type: ignore[no-any-return]

    return rows
