"""States in device memory against those in NumPy arrays, with the CPU as the device."""

import ctypes
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tests.runtime.slot_states import KEY, SUM, VALUE

from ortolan.runtime.engine.device_states import Copier, DeviceStates, Part
from ortolan.runtime.engine.host_states import Snapshot
from ortolan.runtime.engine.ort_session import open_small
from ortolan.runtime.engine.slots import Slots

STATES = (KEY, VALUE, SUM)

Both = tuple[Slots, Slots]


def states_of(slots: Slots) -> DeviceStates:
    assert isinstance(slots.held, DeviceStates)
    return slots.held


@pytest.fixture
def copier() -> Copier:
    return Copier(STATES, ("cpu", 0), partial(open_small, device="cpu"))


@pytest.fixture
def both(copier: Copier) -> Both:
    """The same random contents on the device and on the host, in three rows."""
    device, host = (
        Slots(STATES, count=3, context_length=2000, copier=one) for one in (copier, None)
    )
    random = np.random.default_rng(0)
    for row, length in enumerate((5, 90, 200)):
        contents = tuple(
            random.normal(size=shape).astype(dtype) for shape, dtype in host.layout(length)
        )
        for slots in (device, host):
            snapshot = type(host.view())(identity="", length=length, buffers=contents)
            slots.restore(snapshot, row=row)
    return device, host


def contents(slots: Slots) -> list[NDArray[Any]]:
    return [buffer for row in range(3) for buffer in slots.snapshot(row=row).buffers]


def assert_same(both: Both) -> None:
    device, host = both
    assert (device.lengths, device.capacity) == (host.lengths, host.capacity)
    for got, want in zip(contents(device), contents(host), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "change",
    [
        lambda slots: None,
        lambda slots: slots.copy_rows([0, 2], [2, 0]),
        lambda slots: slots.reserve(700),
        lambda slots: (slots.reserve(700), slots.copy_rows([2], [1])),
        lambda slots: slots.move(2, 0),
        lambda slots: (slots.release(1), slots.begin([0, 1])),
        lambda slots: slots.extend(slots.snapshot(row=0), row=1),
        lambda slots: slots.take_over([1]),
        lambda slots: slots.take_over([0, 1, 2]),
    ],
    ids=["nothing", "swap", "grow", "grow and copy", "move", "begin", "extend", "adopt", "turn"],
)
def test_a_change_is_that_of_the_host(change: Any, both: Both) -> None:
    for slots in both:
        change(slots)
    assert_same(both)


def test_what_was_appended_is_undone_on_an_error(both: Both) -> None:
    def fail(slots: Slots) -> None:
        with slots.unchanged_on_error(1, row=1):
            slots.lengths[1] += 3
            raise RuntimeError

    for slots in both:
        with pytest.raises(RuntimeError):
            fail(slots)
    assert_same(both)


def array_of(part: Part) -> NDArray[Any]:
    """The memory of a part, which is that of this process."""
    assert isinstance(part.dtype, np.dtype)
    size = int(np.prod(part.shape)) * part.dtype.itemsize
    data = memoryview((ctypes.c_char * size).from_address(part.pointer))
    return np.frombuffer(data, part.dtype).reshape(part.shape)


@pytest.mark.parametrize("grown", [False, True])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_call_for_a_row_reads_and_writes_that_row(row: int, grown: bool, both: Both) -> None:
    device, host = both
    rows = slice(row, row + 1)
    states_of(device).around(rows, lambda: None)()  # it has its buffers before they grow
    for slots in both:
        slots.reserve(700 if grown else 200)
    on_host, on_device = list(host.held.bound(rows)), list(device.held.bound(rows))

    def call() -> None:
        for (state, read, written), (_, want, new) in zip(on_device, on_host, strict=True):
            got = array_of(read)
            np.testing.assert_array_equal(
                got[..., : host.lengths[row], :] if state.update == "append" else got,
                want[..., : host.lengths[row], :] if state.update == "append" else want,
            )
            array_of(written)[...] = 7
            new[...] = 7

    states_of(device).around(rows, call)()
    for slots in both:
        slots.take_over([row])
    assert_same(both)


def test_bfloat16_is_moved_as_bits_and_read_as_bfloat16() -> None:
    state = msgspec.structs.replace(KEY, dtype="bfloat16")
    copier = Copier([state], ("cpu", 0), partial(open_small, device="cpu"))
    slots = Slots((state,), count=2, context_length=600, copier=copier)
    numbers = np.random.default_rng(0).normal(size=slots.layout(5)[0][0]).astype(np.float32)
    bits = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    kept = Snapshot(identity="", length=5, buffers=(bits.view(np.float16),))
    slots.restore(kept, row=1)
    slots.reserve(500)
    slots.copy_rows([1], [0])
    np.testing.assert_array_equal(slots.snapshot(row=0).buffers[0].view(np.uint16), bits)
    node = helper.make_node("Cast", [state.input], ["numbers"], to=TensorProto.FLOAT)
    value = helper.make_tensor_value_info(state.input, TensorProto.BFLOAT16, None)
    out = helper.make_tensor_value_info("numbers", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "cast", [value], [out])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    session = open_small(model.SerializeToString(), "cpu")
    binding = session.io_binding()
    ((_, part, _),) = slots.held.bound(slice(0, 1))
    binding.bind_input(state.input, *part)
    binding.bind_output("numbers", "cpu")
    session.run_with_iobinding(binding)
    (got,) = binding.copy_outputs_to_cpu()
    want = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(got[:, :, :5], want)


def test_only_snapshots_cross_to_the_host(both: Both, copier: Copier) -> None:
    device, _ = both
    before = copier.read_bytes, copier.written_bytes
    device.copy_rows([0], [1])
    device.reserve(900)
    states_of(device).around(slice(2, 3), lambda: None)()
    assert (copier.read_bytes, copier.written_bytes) == before
    snapshot = device.snapshot(row=2)
    assert copier.read_bytes - before[0] == sum(buffer.nbytes for buffer in snapshot.buffers)
