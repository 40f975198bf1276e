"""Device states: the states of all rows in the memory of a GPU.

They never pass through the host in a step. Copies are small graphs that run on the device, over
all states at once:

    take   Gather(x, rows)               rows, to buffers of their own
    put    ScatterND(x, places, new)     in place: input and output are one buffer
    grow   Concat(x, new)                along the capacity
    read   Slice(x, start, end)          to the host: snapshots, prefix cache, state files

A provider cannot bind to the middle of a buffer. So the first rows are bound as they are, and any
other row is taken out before a call and put back after it (`around`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.host_states import Buffer, Snapshot, layout
from ortolan.runtime.engine.providers import allocate_on, no_memory, share
from ortolan.runtime.engine.windows import WindowedRows
from ortolan.runtime.errors import ComputeError
from ortolan.runtime.graph.small_model import node_of, write_model

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import State

_Values = list[Any]
"""OrtValues, one per state."""

_Which = Sequence[int] | None
"""Numbers of the states to copy; `None` copies all."""

_ALL = np.iinfo(np.int64).max

_BFLOAT16 = 16
"""ONNX's number of bfloat16. Copies hold its bits as float16, which NumPy has."""


class Part(NamedTuple):
    """The first rows of a buffer, as the arguments of onnxruntime's `bind_input`.

    `dtype` is ONNX's number for bfloat16, which NumPy lacks.
    """

    memory: str
    number: int
    dtype: np.dtype[Any] | int
    shape: list[int]
    pointer: int


class Copier:
    """Copies the states of one bundle within a device, to it and from it, and counts the bytes."""

    def __init__(
        self,
        states: "Sequence[State]",
        memory: tuple[str, int],
        open_graph: Callable[[bytes], Any],
    ) -> None:
        self.states, self.memory = tuple(states), memory
        self.read_bytes = self.written_bytes = 0
        self._open_graph = open_graph
        self._sessions: dict[tuple[str, tuple[int, ...]], Any] = {}

    def zeros(self, rows: int, capacity: int, which: _Which = None) -> _Values:
        """Zeroed buffers for some rows; `None` in place of the states that are left out."""
        chosen = self._chosen(which)
        shapes = [layout(state, rows, capacity) for state in self.states]
        return [
            allocate_on(np.zeros(*shape), self.memory) if number in chosen else None
            for number, shape in enumerate(shapes)
        ]

    def allocate(self, rows: int, capacity: int, which: _Which = None) -> _Values:
        """Zeroed buffers that are certainly there: WebGPU fails only where memory is first used."""
        values, chosen = self.zeros(rows, capacity, which), self._chosen(which)
        try:
            self._slices(values, chosen, rows - 1, 0, 1)
        except ComputeError as error:
            raise no_memory() from error
        return values

    def take(self, values: _Values, rows: Sequence[int], to: _Values, which: _Which = None) -> None:
        """Copy rows to buffers that have as many."""
        feeds = {"rows": np.asarray(rows, np.int64)}
        self._run("take", self._chosen(which), feeds, {"x": values}, to)

    def put(self, values: _Values, rows: Sequence[int], new: _Values, which: _Which = None) -> None:
        """Replace rows by those of buffers that have as many."""
        chosen, places = self._chosen(which), np.asarray(rows, np.int64)[:, None]
        feeds = {f"places{number}": places for number in chosen}
        self._run("put", chosen, feeds, {"x": values, "new": new}, values)

    def write(self, values: _Values, row: int, start: int, arrays: Sequence[Buffer]) -> None:
        """Write tokens of a row from arrays of the host."""
        which = tuple(number for number, array in enumerate(arrays) if array.size)
        new = [share(array) for array in arrays]
        feeds = {
            f"places{number}": _places(self.states[number], arrays[number].shape, row, start)
            for number in which
        }
        self._run("put", which, feeds, {"x": values, "new": new}, values)
        self.written_bytes += sum(array.nbytes for array in arrays)

    def read(self, values: _Values, row: int, start: int, end: int) -> tuple[Buffer, ...]:
        """Copy tokens of a row to the host; replaced states are whole."""
        arrays = self._slices(values, self._chosen(None), row, start, end)
        self.read_bytes += sum(array.nbytes for array in arrays)
        return arrays

    def _slices(
        self, values: _Values, chosen: tuple[int, ...], row: int, start: int, end: int
    ) -> tuple[Buffer, ...]:
        arrays = tuple(np.zeros(*layout(state, 1, end - start)) for state in self.states)
        # kernels mishandle empty tensors
        which = tuple(number for number in chosen if arrays[number].size)
        feeds: dict[str, NDArray[np.int64]] = {}
        for number in which:
            axis = _capacity(self.states[number])
            first, last = [0] * (axis + 1), [_ALL] * (axis + 1)
            if axis:
                first[axis], last[axis] = start, end
            first[0], last[0] = row, row + 1
            feeds |= {f"start{number}": np.array(first), f"end{number}": np.array(last)}
        self._run("read", which, feeds, {"x": values}, [share(array) for array in arrays])
        return arrays

    def grow(self, values: _Values, rows: int, capacity: int, larger: int) -> _Values:
        """Return buffers with zeros for more tokens; replaced states are the same."""
        which = tuple(number for number, state in enumerate(self.states) if _capacity(state))
        more = self.allocate(rows, larger - capacity, which)
        grown = self.allocate(rows, larger, which)
        self._run("grow", which, {}, {"x": values, "new": more}, grown)
        return [grown[n] if n in which else value for n, value in enumerate(values)]

    def _chosen(self, which: _Which) -> tuple[int, ...]:
        return tuple(range(len(self.states)) if which is None else which)

    def _run(
        self,
        copy: str,
        which: tuple[int, ...],
        feeds: Mapping[str, NDArray[Any]],
        values: Mapping[str, _Values],
        outputs: _Values,
    ) -> None:
        if not which:
            return
        session = self._sessions.get((copy, which)) or self._open(copy, which)
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, share(array))
        for number in which:
            for prefix, buffers in values.items():
                binding.bind_ortvalue_input(f"{prefix}{number}", buffers[number])
            binding.bind_ortvalue_output(f"y{number}", outputs[number])
        session.run_with_iobinding(binding)

    def _open(self, copy: str, which: tuple[int, ...]) -> Any:
        nodes = [_NODES[copy](number, self.states[number]) for number in which]
        dtypes = {
            f"{prefix}{number}": layout(self.states[number], 1, 1)[1].name
            for number in which
            for prefix in ("x", "y", "new")
        }
        names = dict.fromkeys(name.decode() for node in nodes for name in node.input)
        results = [node.output[0].decode() for node in nodes]
        graph = write_model(
            nodes,
            inputs={name: dtypes.get(name, "int64") for name in names},
            outputs={name: dtypes[name] for name in results},
        )
        session = self._sessions[copy, which] = self._open_graph(graph)
        return session


class DeviceStates:
    """States that grow or are replaced, for a number of rows, without windows; see `HostStates`."""

    def __init__(
        self,
        copier: Copier,
        states: "Sequence[State]",
        *,
        rows: int,
        capacity: int,
    ) -> None:
        self.capacity, self.turn, self.windows = capacity, 0, WindowedRows(None, rows)
        self._copier, self._states, self._rows = copier, tuple(states), rows
        self._fixed = [n for n, state in enumerate(states) if state.update == "replace"]
        self._buffers = copier.allocate(rows, capacity)
        self._others = self._second(rows, capacity, self._buffers)
        self._lent: _Values = []
        self._lent_others: _Values = []

    def bound(self, rows: slice) -> "Iterator[tuple[State, Any, Any]]":
        """Yield each state with the input and the output of a call for some rows.

        Rows that do not start at 0 must be one row; the call has to be made by `around`.
        """
        first, count = rows.start or 0, min(rows.stop or self._rows, self._rows)
        read, written = self._buffers, self._others
        if first:
            read, written, count = *self._borrow(), 1
        for state, one, other in zip(self._states, read, written, strict=True):
            yield state, self._part(state, one, count), self._part(state, other, count)

    def around(self, rows: slice, call: Callable[[], None]) -> Callable[[], None]:
        """Wrap a call for some rows, so that it computes on them wherever they lie."""
        return partial(self._call_lent, rows.start, call) if rows.start else call

    def swap(self) -> None:
        """Adopt what a step wrote to the replaced states of all rows."""
        self._buffers, self._others = self._others, self._buffers
        self.turn ^= 1

    def adopt(self, rows: Sequence[int]) -> None:
        """Adopt what a step wrote to the replaced states of some rows."""
        part = self._taken(self._others, rows, self._fixed)
        self._copier.put(self._buffers, rows, part, self._fixed)

    def clear(self, rows: Sequence[int]) -> None:
        """Zero the replaced states of some rows."""
        zeros = self._copier.zeros(len(rows), self.capacity, self._fixed)
        self._copier.put(self._buffers, rows, zeros, self._fixed)

    def grow(self, capacity: int, valid: int) -> None:
        """Make room for `capacity` tokens per row."""
        grown = self._copier.grow(self._buffers, self._rows, self.capacity, capacity)
        others = [self._others[n] if n in self._fixed else new for n, new in enumerate(grown)]
        self._buffers, self._others, self.capacity = grown, others, capacity
        self._lent, self._lent_others = [], []

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int], valid: int) -> None:
        """Copy some rows to others, all at once, within the device."""
        self._copier.put(self._buffers, targets, self._taken(self._buffers, sources))

    def read(self, row: int, start: int, end: int) -> tuple[Buffer, ...]:
        """Copy some tokens of a row to the host; replaced states are whole."""
        return self._copier.read(self._buffers, row, start, end)

    def write(self, row: int, start: int, snapshot: Snapshot) -> None:
        """Write a snapshot to a row, after its first `start` tokens."""
        self._copier.write(self._buffers, row, start, snapshot.buffers)

    def replaced(self, row: int) -> Any:
        """Return a copy of the replaced states of a row, in the memory of the device."""
        return self._taken(self._buffers, [row], self._fixed)

    def put_replaced(self, row: int, values: Any) -> None:
        """Set the replaced states of a row to a copy of them."""
        self._copier.put(self._buffers, [row], values, self._fixed)

    def _taken(self, values: _Values, rows: Sequence[int], which: _Which = None) -> _Values:
        part = self._copier.zeros(len(rows), self.capacity, which)
        self._copier.take(values, rows, part, which)
        return part

    def _second(self, rows: int, capacity: int, buffers: _Values) -> _Values:
        """Buffers for the outputs of a call: those that grow are also its inputs."""
        new = self._copier.allocate(rows, capacity, self._fixed)
        return [new[n] if n in self._fixed else value for n, value in enumerate(buffers)]

    def _borrow(self) -> tuple[_Values, _Values]:
        if not self._lent:
            self._lent = self._copier.allocate(1, self.capacity)
            self._lent_others = self._second(1, self.capacity, self._lent)
        return self._lent, self._lent_others

    def _call_lent(self, row: int, call: Callable[[], None]) -> None:
        lent, others = self._borrow()
        self._copier.take(self._buffers, [row], lent)
        call()
        self._copier.put(self._others, [row], others)

    def _part(self, state: "State", value: Any, count: int) -> Part:
        shape, held = layout(state, count, self.capacity)
        dtype = _BFLOAT16 if state.dtype == "bfloat16" else held
        return Part(*self._copier.memory, dtype, list(shape), value.data_ptr())


_NODES: Mapping[str, Callable[[int, "State"], Any]] = {
    "take": lambda n, _: node_of("Gather", [f"x{n}", "rows"], f"y{n}", axis=0),
    "put": lambda n, _: node_of("ScatterND", [f"x{n}", f"places{n}", f"new{n}"], f"y{n}"),
    "grow": lambda n, s: node_of("Concat", [f"x{n}", f"new{n}"], f"y{n}", axis=_capacity(s)),
    "read": lambda n, _: node_of("Slice", [f"x{n}", f"start{n}", f"end{n}"], f"y{n}"),
}


def _capacity(state: "State") -> int:
    """The axis along which a state grows; 0, the batch, if it does not."""
    return state.shape.index("capacity") if state.update == "append" else 0


def _places(state: "State", shape: tuple[int, ...], row: int, start: int) -> NDArray[np.int64]:
    """Indices of ScatterND for an array of these sizes that starts at a row and a token."""
    axis = _capacity(state)
    if not axis:
        return np.array([[row]], np.int64)
    first = [row, *[0] * (axis - 1), start]
    ranges = [np.arange(n, n + size) for n, size in zip(first, shape[: axis + 1], strict=True)]
    return np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).astype(np.int64)
