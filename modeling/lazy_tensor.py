"""Tensors that are read only when needed, a few rows at a time.

The tensors of a checkpoint are lazy, and so is what operations of PyTorch make of them: they join
projections, split or transpose them, stack experts, or put heads in another order without reading
anything. The result knows which rows of the originals it needs:

    cat([a, b]).chunk(2)[1].read(0, 10)      reads ten rows, of a, b or both

What is known of the rows of a tensor, its integer codes and its low-rank update, stays with them as
long as rows are only selected and joined.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ortolan.modeling.codes import CodedRows, StoredCodes, join_codes, joint_format

Reader = Callable[[int, int, int], Tensor]
"""Reads the slice `[start:stop]` of a tensor along an axis, all three in this order."""

READ_ELEMENTS = 1 << 21
"""Number of elements converted at once while a tensor is read."""

ROWS_AT_ONCE = 4096
"""Rows of two tensors in memory at once while they are compared."""

GAP = 16
"""Read up to this many unneeded rows between needed ones: faster than a second read."""

aten = torch.ops.aten


class LowRank(NamedTuple):
    """An update that is already added to a tensor: `left @ right`, float32.

    Attributes:
        left: `(rows, r)`.
        right: `(r, columns)`.
        names: the published tensors whose updates it contains.
    """

    left: Tensor
    right: Tensor
    names: frozenset[str]


class LazyTensor(Tensor):
    """A tensor whose slices are computed on demand.

    Attributes:
        meta: its shape and type, on the device "meta".
        axes: axes along which a slice costs less than the whole.
        codes: its rows as integer codes, if it is stored as such.
        update: the update that an adapter adds to it.
        outputs_first: a matrix `(outputs, inputs)` even where its format is transposed.
        turned: the tensor that it is with other axes, and these axes.
    """

    meta: Tensor
    axes: frozenset[int]
    codes: StoredCodes | None = None
    update: LowRank | None = None
    outputs_first: bool = False
    turned: "tuple[LazyTensor, tuple[int, ...]] | None" = None

    @staticmethod
    def __new__(cls, meta: Tensor, reader: Reader, axes: Iterable[int] = ()) -> "LazyTensor":
        """Make a tensor without memory."""
        tensor: LazyTensor = Tensor._make_wrapper_subclass(
            cls, meta.shape, strides=meta.stride(), dtype=meta.dtype, device=torch.device("cpu")
        )
        return tensor

    def __init__(self, meta: Tensor, reader: Reader, axes: Iterable[int] = ()) -> None:
        self.meta, self.axes, self._reader = meta, frozenset(axes), reader

    def read(self, start: int, stop: int, axis: int = 0) -> Tensor:
        """Slice `[start:stop]` along an axis; a scalar is read whole."""
        return self._reader(start, stop, axis)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Apply an operation without reading anything, unless it does not return a tensor."""
        call = _Call(func, args, dict(kwargs or {}))
        if not any("Tensor" in str(output.type) for output in func._schema.returns):
            return call.applied()
        shapes = func(*tree_map(_meta, args), **tree_map(_meta, call.kwargs))
        if not isinstance(shapes, (list, tuple)):
            return _output(call, 0, shapes)
        return [_output(call, place, meta) for place, meta in enumerate(shapes)]


def stored_tensor(
    shape: Sequence[int],
    reader: Reader,
    dtype: torch.dtype = torch.float32,
    axes: Iterable[int] | None = None,
) -> LazyTensor:
    """A tensor that something else reads, cheaply along the given axes (by default all)."""
    meta = torch.empty(tuple(shape), dtype=dtype, device="meta")
    return LazyTensor(meta, reader, range(len(shape)) if axes is None else axes)


def rows_of(tensor: Tensor, start: int, stop: int, axis: int = 0) -> Tensor:
    """Slice `[start:stop]` of a tensor, lazy or not, along an axis; a scalar is read whole."""
    if isinstance(tensor, LazyTensor):
        return tensor.read(start, stop, axis)
    return tensor[(*[slice(None)] * axis, slice(start, stop))] if tensor.dim() else tensor


def whole_of(tensor: Tensor) -> Tensor:
    """All of a tensor, lazy or not."""
    return rows_of(tensor, 0, len(tensor) if tensor.dim() else 1)


def are_equal(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors of one shape, lazy or not, have the same values."""
    count = len(first)
    return all(
        torch.equal(
            rows_of(first, start, min(start + ROWS_AT_ONCE, count)).float(),
            rows_of(second, start, min(start + ROWS_AT_ONCE, count)).float(),
        )
        for start in range(0, count, ROWS_AT_ONCE)
    )


def row_spans(rows: range | Tensor) -> Iterator[tuple[int, int, Tensor | slice]]:
    """Ranges `[first:last]` that cover rows `(N,)`, and the wanted rows of each range."""
    if isinstance(rows, range):
        yield rows.start, rows.stop, slice(None, None, rows.step)
        return
    step = rows.diff()
    cuts = ((step < 1) | (step > GAP)).nonzero().flatten() + 1
    for span in torch.tensor_split(rows, cuts):
        first, last = int(span[0]), int(span[-1]) + 1
        yield first, last, span - first


@dataclass(frozen=True, slots=True)
class _Call:
    """An operation and its arguments."""

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def tensors(self) -> list[Tensor]:
        """Its tensors that are not scalars."""
        leaves = tree_leaves([self.args, self.kwargs])
        return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()]

    def axis(self, place: int, dims: int) -> int:
        """An axis among its arguments; 0 if it is left out."""
        axis: int = self.args[place] if len(self.args) > place else 0
        return axis % max(dims, 1)

    def applied(self, read: Callable[[Tensor], Tensor] = whole_of) -> Any:
        """Its result for what is read of its tensors."""

        def value(leaf: object) -> object:
            return read(leaf) if isinstance(leaf, Tensor) else leaf

        args = tree_map(value, list(self.args))
        if self.func in _RESHAPES:
            return args[0].reshape(args[1])  # what was read may have other strides
        return self.func(*args, **tree_map(value, dict(self.kwargs)))


def _meta(value: object) -> object:
    if not isinstance(value, Tensor):
        return torch.device("meta") if isinstance(value, torch.device) else value
    return value.meta if isinstance(value, LazyTensor) else value.to("meta")


def _output(call: _Call, place: int, meta: Tensor) -> LazyTensor:
    """One output of an operation."""
    if meta.dim() and not call.kwargs.get("out"):
        for rule in (_selected, _turned, _reshaped, _stacked, _by_element, _by_row):
            tensor = rule(call, place, meta)
            if tensor is not None:
                return tensor

    def read(start: int, stop: int, axis: int) -> Tensor:
        whole = _nth(call.applied(), place)
        return whole.narrow(axis, start, stop - start) if meta.dim() else whole

    return LazyTensor(meta, read)


def _nth(outputs: Any, place: int) -> Tensor:
    tensor: Tensor = outputs[place] if isinstance(outputs, (list, tuple)) else outputs
    return tensor


def lazy_rows(
    meta: Tensor, rows: Callable[[int, int], Tensor], *, is_sliced: bool = True
) -> LazyTensor:
    """A tensor that is read by rows; those of other axes are cut out of a few rows at a time."""

    def read(start: int, stop: int, axis: int) -> Tensor:
        if axis == 0:
            return rows(start, stop)
        count, width = len(meta), max(math.prod(meta.shape[1:]), 1)
        step = max(1, READ_ELEMENTS // width) if is_sliced else count
        parts = [rows(row, min(row + step, count)) for row in range(0, count, step)]
        return torch.cat([part.narrow(axis, start, stop - start) for part in parts])

    return LazyTensor(meta, read, (0,) if is_sliced else ())


# --- selected and joined rows -------------------------------------------------------------------

Run = tuple[Tensor, "range | Tensor"]
"""A tensor, and those of its rows, int64 `(N,)`, that follow each other in another."""


def _selected(call: _Call, place: int, meta: Tensor) -> LazyTensor | None:
    """Rows of one or several tensors; what is known of them stays with them."""
    runs = _runs(call, place)
    if runs is None:
        return None

    def rows(start: int, stop: int) -> Tensor:
        parts = [
            rows_of(tensor, *span)[wanted] for tensor, *span, wanted in _spans(runs, start, stop)
        ]
        if not parts:
            return torch.empty((0, *meta.shape[1:]), dtype=meta.dtype)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    is_sliced = all(0 in _axes(tensor) for tensor, _ in runs)
    tensor = lazy_rows(meta, rows, is_sliced=is_sliced)
    tensor.codes, tensor.update = _codes(runs, meta), _update(runs, meta)
    return tensor


def _runs(call: _Call, place: int) -> list[Run] | None:
    """The rows that an operation selects; None if it does something else."""
    func, args = call.func, call.args
    if func is aten.cat.default:
        parts: Sequence[Tensor] = args[0]
        is_joined = call.axis(1, parts[0].dim()) == 0
        return [(part, range(len(part))) for part in parts] if is_joined else None
    whole = args[0]
    if not isinstance(whole, LazyTensor) or not whole.dim():
        return None
    dims, length = whole.dim(), len(whole)
    if func is aten.slice.Tensor and not call.axis(1, dims):
        start, stop, step = (*args[2:], *(None, None, None)[len(args) - 2 :])[:3]
        return [(whole, range(*slice(start, stop, step).indices(length)))]
    if func is aten.split.Tensor and not call.axis(2, dims):
        return [(whole, range(length)[place * args[1] : (place + 1) * args[1]])]
    if func is aten.split_with_sizes.default and not call.axis(2, dims):
        first = sum(args[1][:place])
        return [(whole, range(first, first + args[1][place]))]
    if func is aten.index_select.default and not call.axis(1, dims):
        return [(whole, args[2])]
    if func is aten.index.Tensor and len(args[1]) == 1 and args[1][0].dim() == 1:
        return [(whole, args[1][0])]
    return [(whole, range(length))] if func in _COPIES else None


def _spans(runs: Sequence[Run], start: int, stop: int) -> Iterator[tuple[Any, int, int, Any]]:
    """What to read for rows `[start:stop]`: a tensor, a range of its rows, and the wanted ones."""
    for tensor, rows in runs:
        first, last = max(start, 0), min(stop, len(rows))
        if first < last:
            for low, high, wanted in row_spans(rows[first:last]):
                yield tensor, low, high, wanted
        start, stop = start - len(rows), stop - len(rows)


def _codes(runs: Sequence[Run], meta: Tensor) -> StoredCodes | None:
    """The codes of selected rows; None if some have none."""
    coded = [t.codes for t, _ in runs if isinstance(t, LazyTensor) and t.codes is not None]
    if len(coded) < len(runs) or meta.dim() != 2:
        return None

    def rows(start: int, stop: int) -> CodedRows:
        return join_codes(
            [
                CodedRows(*(part[wanted] for part in tensor.codes.rows(first, last)))
                for tensor, first, last, wanted in _spans(runs, start, stop)
            ]
        )

    return StoredCodes(lambda: joint_format(codes.format for codes in coded), rows)


def _update(runs: Sequence[Run], meta: Tensor) -> LowRank | None:
    """The update of selected rows; those of several tensors lie side by side.

    [ B_q         ]   [ A_q ]
    [     B_k     ] @ [ A_k ]
    [         B_v ]   [ A_v ]
    """
    lefts, rights, names, start = list[Tensor](), list[Tensor](), set[str](), 0
    for tensor, rows in runs:
        stop = start + len(rows)
        if isinstance(tensor, LazyTensor) and tensor.update is not None:
            left, right, own = tensor.update
            wanted = slice(rows.start, rows.stop, rows.step) if isinstance(rows, range) else rows
            lefts.append(F.pad(left[wanted], (0, 0, start, len(meta) - stop)))
            rights.append(right)
            names |= own
        start = stop
    return LowRank(torch.cat(lefts, 1), torch.cat(rights), frozenset(names)) if lefts else None


# --- other axes ---------------------------------------------------------------------------------


def _turned(call: _Call, place: int, meta: Tensor) -> LazyTensor | None:
    """A tensor with its axes in another order; the original once they are back in order."""
    whole = call.args[0]
    axes = _order(call)
    if axes is None or not isinstance(whole, LazyTensor):
        return None
    if whole.turned is not None:
        original, first = whole.turned
        axes = tuple(first[axis] for axis in axes)
    else:
        original = whole
    if axes == tuple(range(len(axes))):
        tensor = LazyTensor(meta, original.read, original.axes)
        tensor.codes, tensor.update = original.codes, original.update
        return tensor

    def read(start: int, stop: int, axis: int) -> Tensor:
        return original.read(start, stop, axes[axis]).permute(axes)

    cheap = (place for place, axis in enumerate(axes) if axis in original.axes)
    tensor = LazyTensor(meta, read, cheap)
    tensor.turned = original, axes
    if original.update is not None:
        left, right, names = original.update
        tensor.update = LowRank(right.mT, left.mT, names)
    return tensor


def _order(call: _Call) -> tuple[int, ...] | None:
    """The axes of a tensor in their new order; None for another operation."""
    dims = call.args[0].dim() if isinstance(call.args[0], Tensor) else 0
    axes = list(range(dims))
    if call.func is aten.permute.default:
        return tuple(axis % dims for axis in call.args[1])
    if call.func is aten.transpose.int:
        first, second = (axis % dims for axis in call.args[1:3])
        axes[first], axes[second] = second, first
        return tuple(axes)
    return tuple(axes[::-1]) if call.func is aten.t.default else None


def _reshaped(call: _Call, place: int, meta: Tensor) -> LazyTensor | None:
    """A tensor of another shape, whose rows are one or several of its rows, or parts of them."""
    whole = call.args[0]
    if call.func not in _RESHAPES or not isinstance(whole, LazyTensor) or not meta.numel():
        return None
    # skip leading axes of a single row
    axis = next((axis for axis, size in enumerate(whole.shape) if size > 1), whole.dim() - 1)
    width, own = math.prod(whole.shape[axis + 1 :]), math.prod(meta.shape[1:])

    def rows(start: int, stop: int) -> Tensor:
        first, last = start * own // width, -(-stop * own // width)
        flat = whole.read(first, last, axis).reshape(-1)
        return flat[start * own - first * width :][: (stop - start) * own].reshape(
            -1, *meta.shape[1:]
        )

    return lazy_rows(meta, rows, is_sliced=axis in whole.axes)


def _stacked(call: _Call, place: int, meta: Tensor) -> LazyTensor | None:
    """Tensors stacked along the first axis."""
    if call.func is not aten.stack.default or call.axis(1, meta.dim()):
        return None
    parts: Sequence[Tensor] = call.args[0]

    def rows(start: int, stop: int) -> Tensor:
        return torch.stack([whole_of(part) for part in parts[start:stop]])

    return lazy_rows(meta, rows)


# --- operations that treat all elements or all rows alike ---------------------------------------


def _by_element(call: _Call, place: int, meta: Tensor) -> LazyTensor | None:
    """An operation of tensors of one shape that treats every element alike."""
    tensors = call.tensors()
    is_alike = torch.Tag.pointwise in call.func.tags or call.func is aten._to_copy.default
    if not is_alike or not tensors or any(tensor.shape != meta.shape for tensor in tensors):
        return None

    def read(start: int, stop: int, axis: int) -> Tensor:
        return _nth(call.applied(lambda tensor: rows_of(tensor, start, stop, axis)), place)

    return LazyTensor(meta, read, frozenset.intersection(*map(_axes, tensors)))


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

_COPIES = (aten.clone.default, aten.alias.default, aten.detach.default)


def _by_row(call: _Call, place: int, meta: Tensor) -> LazyTensor | None:
    """An operation that treats every row alike."""
    tensors = call.tensors()
    if not tensors or any(tensor.shape[0] != meta.shape[0] for tensor in tensors):
        return None
    axis_place, dims = _AXIS_PLACES.get(call.func), tensors[0].dim()
    if axis_place is not None:
        dims += call.func is aten.stack.default
        is_by_row = call.axis(axis_place, dims) != 0
    else:
        is_by_row = call.func is aten.constant_pad_nd.default and len(call.args[1]) < 2 * dims
    if not is_by_row:
        return None

    def rows(start: int, stop: int) -> Tensor:
        return _nth(call.applied(lambda tensor: rows_of(tensor, start, stop)), place)

    return lazy_rows(meta, rows, is_sliced=all(0 in _axes(tensor) for tensor in tensors))


def _axes(tensor: Tensor) -> frozenset[int]:
    """Axes along which a slice of a tensor, lazy or not, costs less than the whole."""
    return tensor.axes if isinstance(tensor, LazyTensor) else frozenset(range(tensor.dim()))
