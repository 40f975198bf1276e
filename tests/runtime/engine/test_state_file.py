"""Saved sessions: files that were changed, or that are of another kind."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.conftest import Models
from tests.runtime.slot_states import KEY, SUM, VALUE, filled
from tests.runtime.tiny_decoder import VOCABULARY
from tests.tiny.numbers import random_ids

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine.slots import Slots
from ortolan.runtime.engine.state_file import read_states, write_states
from ortolan.runtime.errors import StateFileError

CODES = msgspec.structs.replace(KEY, name="codes", dtype="int8")
STATES = (KEY, VALUE, SUM, CODES)

Change = Callable[[bytes], bytes]


def header(change: Change) -> Change:
    """A change of the JSON of a file, with its size."""

    def apply(content: bytes) -> bytes:
        size = int.from_bytes(content[12:16], "little")
        text = change(content[48 : 48 + size].rstrip())
        start = content[:12] + len(text).to_bytes(4, "little") + content[16:48]
        return start + text + content[48 + size :]

    return apply


DAMAGES: dict[str, Change] = {
    "last byte": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "empty": lambda content: b"",
    "cut in the start": lambda content: content[:15],
    "cut in the header": lambda content: content[:100],
    "cut at the end": lambda content: content[:-1],
    "longer": lambda content: content + bytes(64),
    "version": lambda content: content[:8] + b"\0" + content[9:],
    "not a state file": lambda content: b"something else",
    "header of nothing": header(lambda text: b""),
    "header of brackets": header(lambda text: b"[" * 1000),
    "header of bytes": header(lambda text: b"\xff" * 64),
    "more tokens": header(lambda text: text.replace(b'"tokens":', b'"tokens":1')),
    "fewer tokens than none": header(lambda text: text.replace(b'"tokens":', b'"tokens":-')),
    "huge": header(lambda text: text.replace(b"[1,2,", b"[1,1099511627776,")),
    "unknown type": header(lambda text: text.replace(b"float32", b"object")),
    "unknown field": header(lambda text: text.replace(b'"after"', b'"later"')),
}


@pytest.fixture
def saved(model: Decoder, tmp_path: Path) -> Path:
    """A session of 50 tokens."""
    with model.session() as session:
        session.append(random_ids(50))
        session.save(tmp_path / "saved")
    return tmp_path / "saved"


@settings(max_examples=20, deadline=None)
@given(length=st.integers(0, 600), number=st.integers(1, 4))
def test_states_of_every_type_are_read_unchanged(
    tmp_path_factory: pytest.TempPathFactory, length: int, number: int
) -> None:
    path = tmp_path_factory.mktemp("states") / "saved"
    slots = Slots(STATES[:number], count=2, context_length=600, identities=("bundle",))
    filled(slots, 600, length)
    write_states(path, list(range(length)), slots.view(row=1))
    ids, states = read_states(path, slots)
    assert ids == list(range(length))
    for got, want in zip(states.buffers, slots.snapshot(row=1).buffers, strict=True):
        np.testing.assert_array_equal(got, want)
    with pytest.raises(StateFileError, match="states of the bundle"):
        read_states(path, Slots((VALUE, KEY), count=1, context_length=600, identities=("bundle",)))
    assert [entry.name for entry in path.parent.iterdir()] == ["saved"]


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused_without_allocating_memory(
    model: Decoder, saved: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    content = saved.read_bytes()
    saved.write_bytes(DAMAGES[name](content))
    assert refusal(lambda: model.load_session(saved)) == snapshot
    tracemalloc.start()
    refusal(lambda: model.load_session(saved))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_change_of_any_byte_is_refused(model: Decoder, saved: Path) -> None:
    content, random = saved.read_bytes(), np.random.default_rng(0)
    begin = content.index(b"}]}") + 64
    for place in (*range(begin), *random.integers(begin, len(content), 200).tolist()):
        changed = bytearray(content)
        changed[place] ^= random.integers(1, 256)
        saved.write_bytes(changed)
        with pytest.raises(StateFileError, match=r"saved: expected .* got "):
            model.load_session(saved)


def test_files_of_other_states_or_places_are_refused(
    models: Models, model: Decoder, saved: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    with model.serve(cache_folder=tmp_path / "blocks") as service:
        service.submit(random_ids(300), max_new_tokens=1).result()
    block = next((tmp_path / "blocks").iterdir())  # follows the root of its chain
    with pytest.raises(StateFileError, match="expected tokens after none, got some after"):
        model.load_session(block)
    with pytest.raises(StateFileError, match="states of the bundle"):
        models["recurrent"].load_session(saved)
    session = model.session()
    refused = {
        "folder": lambda: model.load_session(tmp_path),
        "missing": lambda: model.load_session(tmp_path / "missing"),
        "save in a missing folder": lambda: session.save(tmp_path / "missing" / "saved"),
    }
    texts = {name: refusal(call, tmp_path, tmp_path.name) for name, call in refused.items()}
    assert texts == snapshot


def test_ids_outside_the_vocabulary_are_refused(model: Decoder, tmp_path: Path) -> None:
    slots = model._engine.slots()
    slots.lengths[0] = 1
    write_states(tmp_path / "saved", [VOCABULARY], slots.view())
    assert f"(got {VOCABULARY}" in refusal(lambda: model.load_session(tmp_path / "saved"))


def test_a_failed_write_leaves_only_the_old_file(
    model: Decoder, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    content = saved.read_bytes()
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StateFileError, match="disk full"):
        model.session().save(saved)
    assert saved.read_bytes() == content
    assert list(saved.parent.iterdir()) == [saved]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_only_the_owner_may_read_a_saved_session(saved: Path) -> None:
    assert saved.stat().st_mode & 0o777 == 0o600
