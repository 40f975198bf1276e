import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.slot_states import KEY, SUM, VALUE, filled

from ortolan.runtime.bundle.manifest import State
from ortolan.runtime.engine import state_file
from ortolan.runtime.engine.slots import Slots
from ortolan.runtime.engine.state_file import read_states, write_states
from ortolan.runtime.errors import StateFileError

CODES = msgspec.structs.replace(KEY, name="codes", dtype="int8")
STATES = (KEY, VALUE, SUM, CODES)

Change = Callable[[bytearray], object]


def new_slots(*, states: tuple[State, ...] = STATES, identity: str = "bundle") -> Slots:
    return Slots(states, count=2, context_length=600, identities=(identity,))


SLOTS = new_slots()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A file of 50 tokens."""
    slots = filled(new_slots(), 20, 50)
    write_states(tmp_path / "saved", range(50), slots.view(row=1))
    return tmp_path / "saved"


@settings(max_examples=20, deadline=None)
@given(length=st.integers(0, 600), number=st.integers(1, 4))
def test_written_states_are_read_unchanged(
    tmp_path_factory: pytest.TempPathFactory, length: int, number: int
) -> None:
    path = tmp_path_factory.mktemp("states") / "saved"
    slots = filled(new_slots(states=STATES[:number]), 600, length)
    write_states(path, range(length), slots.view(row=1))
    ids, states = read_states(path, new_slots(states=STATES[:number]))
    assert ids == list(range(length))
    assert (states.identity, states.length) == ("bundle", length)
    for got, want in zip(states.buffers, slots.view(row=1).buffers, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    assert path.stat().st_size % 64 == 0
    assert [entry.name for entry in path.parent.iterdir()] == ["saved"]


def test_a_change_of_any_byte_of_the_header_is_rejected(saved: Path) -> None:
    content = saved.read_bytes()
    head = content.index(b"}]}") + 64
    for place in range(head):
        assert_refused(saved, content, place, 1 + place % 255)


def test_a_change_of_any_other_byte_is_rejected(saved: Path) -> None:
    content, random = saved.read_bytes(), np.random.default_rng(0)
    for place, bits in random.integers((0, 1), (len(content), 256), (200, 2)).tolist():
        assert_refused(saved, content, place, bits)


def assert_refused(path: Path, content: bytes, place: int, bits: int) -> None:
    changed = bytearray(content)
    changed[place] ^= bits
    path.write_bytes(changed)
    with pytest.raises(StateFileError, match=r"saved: expected .* got "):
        read_states(path, SLOTS)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 47, 48, 100, -1])
def test_a_file_that_was_cut_off_is_rejected(saved: Path, size: int) -> None:
    saved.write_bytes(saved.read_bytes()[:size])
    with pytest.raises(StateFileError, match="saved: expected"):
        read_states(saved, new_slots())


def test_longer_files_and_those_of_another_version_bundle_or_states_are_rejected(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for states in (STATES[:3], (VALUE, KEY, SUM, CODES), (KEY, VALUE, SUM, KEY)):
        with pytest.raises(StateFileError, match="states of the bundle"):
            read_states(saved, new_slots(states=states))
    with pytest.raises(StateFileError, match="bundle and adapter other, got bundle"):
        read_states(saved, new_slots(identity="other"))
    with monkeypatch.context() as patch:
        patch.setattr(state_file, "VERSION", 2)
        with pytest.raises(StateFileError, match="version 2, got 1"):
            read_states(saved, new_slots())
    data = saved.read_bytes()
    for more in (1, 64):
        saved.write_bytes(data + bytes(more))
        with pytest.raises(StateFileError, match=f"{len(data)} bytes, got {len(data) + more}"):
            read_states(saved, new_slots())


def test_tokens_that_follow_others_are_not_read_as_a_start(tmp_path: Path) -> None:
    slots = filled(new_slots(), 50, 0)
    write_states(tmp_path / "block", range(30), slots.view(start=20), after="abc")
    with pytest.raises(StateFileError, match="after abc"):
        read_states(tmp_path / "block", new_slots())
    ids, states = read_states(tmp_path / "block", new_slots(), after="abc")
    assert (len(ids), states.length) == (30, 30)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.replace(b'"tokens":50', b'"tokens":51'),
        lambda header: header.replace(b'"tokens":50', b'"tokens":-1'),
        lambda header: header.replace(b"[1,2,50,4]", b"[1,2,1099511627776,4]"),
        lambda header: header.replace(b"[1,2,50,4]", b"[1099511627776,1099511627776]"),
        lambda header: header.replace(b"float16", b"object"),
        lambda header: header.replace(b'"after"', b'"later"'),
        lambda header: b"[" * 1000,
        lambda header: b"\xff" * 64,
        lambda header: b"",
    ],
)
def test_a_lying_header_is_rejected_without_allocating_memory(
    saved: Path, change: Callable[[bytes], bytes]
) -> None:
    content = saved.read_bytes()
    size = int.from_bytes(content[12:16], "little")
    header = change(content[48 : 48 + size].rstrip())
    start = content[:12] + len(header).to_bytes(4, "little") + content[16:48]
    saved.write_bytes(start + header + content[48 + size :])
    slots = new_slots()
    tracemalloc.start()
    with pytest.raises(StateFileError, match="saved: expected"):
        read_states(saved, slots)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000


def test_a_failed_write_leaves_only_the_old_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, slots = saved.read_bytes(), filled(new_slots(), 50, 0)

    def fail(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_states(saved, range(50), slots.view())
    assert saved.read_bytes() == content
    assert list(saved.parent.iterdir()) == [saved]


def test_folders_and_missing_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(StateFileError, match="expected a file"):
        read_states(tmp_path, new_slots())
    with pytest.raises(FileNotFoundError):
        read_states(tmp_path / "missing", new_slots())


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_only_the_owner_may_read_a_state_file(saved: Path) -> None:
    assert saved.stat().st_mode & 0o777 == 0o600
