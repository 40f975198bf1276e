"""Adapters that are refused, each with a typed error that says why."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import tiny_encoder
from tests.runtime.tiny_adapters import random_factors, write_adapter
from tests.runtime.tiny_decoder import (
    VOCABULARY,
    tokenizer_json,
    write_bundle,
)

from ortolan.runtime import limits
from ortolan.runtime.bundle.adapter_folder import BLOB, NAME, Factors
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import AdapterError, MemoryPlanError
from ortolan.runtime.loading import load

IDS = [5, 7, 11, 13]


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return open_bundle(write_bundle(tmp_path / "bundle", tokenizer=tokenizer_json()).path)


def refused(bundle: Bundle, folder: Path) -> str:
    text = refusal(lambda: load(bundle.path, adapters={"mine": folder}), folder, bundle.path)
    return re.sub("[0-9a-f]{64}", "...", text)


def damage(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return apply


def described(**changes: Any) -> Callable[[Path], object]:
    def change(data: bytes) -> bytes:
        return json.dumps(json.loads(data) | changes).encode()

    return damage(NAME, change)


def updating(name: str, factors: Callable[[], Factors]) -> Callable[[Path], object]:
    """An adapter that updates one weight."""

    def write(folder: Path) -> None:
        write_adapter(folder, open_bundle(folder.parent / "bundle"), {name: factors()})

    return write


def of_infinity(folder: Path) -> None:
    bundle = open_bundle(folder.parent / "bundle")
    factors = random_factors(bundle)
    factors["0.v"].second[1, 3] = np.inf
    write_adapter(folder, bundle, factors)


def of_another_bundle(folder: Path) -> None:
    other = open_bundle(write_bundle(folder.parent / "other", seed=1).path)
    write_adapter(folder, other, random_factors(other))


def link(folder: Path) -> None:
    (folder / NAME).rename(folder.parent / "elsewhere")
    os.symlink(folder.parent / "elsewhere", folder / NAME)


ONES = np.ones((32, 1), np.float32)

DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda folder: (folder / NAME).unlink(),
    "empty": damage(NAME, lambda data: b""),
    "cut": damage(NAME, lambda data: data[:-20]),
    "deep": damage(NAME, lambda data: b"[" * 100_000),
    "long": damage(NAME, lambda data: data + b" " * limits.MAX_MANIFEST_BYTES),
    "newer": described(schema=2),
    "unknown field": described(more=1),
    "no updates": described(updates=[]),
    "no blob": lambda folder: (folder / BLOB).unlink(),
    "cut blob": damage(BLOB, lambda data: data[:-4]),
    "other bytes": damage(BLOB, lambda data: bytes(len(data))),
    "link": link,
    "infinite": of_infinity,
    "another bundle": of_another_bundle,
    "looked up": updating(
        "embedding", lambda: Factors(np.ones((VOCABULARY, 1), np.float32), ONES.T)
    ),
    "no weight": updating("7.q", lambda: Factors(ONES, np.ones((1, 64), np.float32))),
    "other shape": updating("0.q", lambda: Factors(ONES, np.ones((1, 63), np.float32))),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_adapter_is_refused(
    bundle: Bundle, tmp_path: Path, kind: str, snapshot: SnapshotAssertion
) -> None:
    folder = write_adapter(tmp_path / "adapter", bundle, random_factors(bundle))
    DAMAGE[kind](folder)
    assert refused(bundle, folder) == snapshot


def test_changed_bytes_raise_a_typed_error_or_change_nothing(
    bundle: Bundle, tmp_path: Path
) -> None:
    factors = random_factors(bundle, weights=("0.q",))
    folder = write_adapter(tmp_path / "adapter", bundle, factors)
    expected = load(bundle.path, Decoder, adapters={"a": folder}).logits(IDS, adapter="a")
    random, loaded = np.random.default_rng(0), 0
    for name in 60 * [NAME] + 10 * [BLOB]:
        content = (folder / name).read_bytes()
        changed = bytearray(content)
        changed[random.integers(len(content))] ^= random.integers(1, 256)
        (folder / name).write_bytes(changed)
        try:
            model = load(bundle.path, Decoder, adapters={"a": folder})
        except AdapterError:
            pass
        else:  # a field about where the adapter comes from
            np.testing.assert_array_equal(model.logits(IDS, adapter="a"), expected)
            loaded += 1
        (folder / name).write_bytes(content)
    assert loaded < 40


def test_too_many_or_too_large_adapters_are_refused(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    folder = write_adapter(tmp_path / "adapter", bundle, random_factors(bundle))
    names = [f"{number}" for number in range(limits.MAX_ADAPTERS + 1)]
    calls = {
        "many": lambda: load(bundle.path, adapters=dict.fromkeys(names, folder)),
        "large together": lambda: load(bundle.path, adapters={"a": folder, "b": folder}),
    }
    size = (folder / BLOB).stat().st_size
    monkeypatch.setattr(limits, "MAX_ADAPTER_BYTES", size)
    load(bundle.path, adapters={"a": folder})
    texts = {name: refusal(call, folder) for name, call in calls.items()}
    monkeypatch.setattr(limits, "MAX_ADAPTER_BYTES", size - 1)
    assert {**texts, "large": refused(bundle, folder)} == snapshot


def test_other_types_and_kinds_of_bundle_are_refused(
    bundle: Bundle, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    wrong: list[Any] = ["adapter/", {1: "adapter/"}, {"": "adapter/"}, {"a": None}]
    texts = [refusal(lambda w=w: load(bundle.path, adapters=w)) for w in wrong]  # type: ignore[misc]
    encoder = tiny_encoder.write_bundle(tmp_path / "encoder").path
    assert [*texts, refusal(lambda: load(encoder, adapters={"a": tmp_path}))] == snapshot


def test_memory_plan_counts_adapters(
    bundle: Bundle, tmp_path: Path, memory_left: Callable[[int], None]
) -> None:
    folder = write_adapter(tmp_path / "adapter", bundle, random_factors(bundle, rank=8))
    size = (folder / BLOB).stat().st_size
    for free in range(0, 10 * size, size // 4):
        memory_left(free)
        try:
            load(bundle.path)
            break
        except MemoryPlanError:
            pass
    with pytest.raises(MemoryPlanError):
        load(bundle.path, adapters={"a": folder})
    memory_left(free + 2 * size)
    load(bundle.path, adapters={"a": folder})
