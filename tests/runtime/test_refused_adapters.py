"""Adapters that are refused, each with a typed error that says why."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
from ortolan.runtime.errors import (
    AdapterError,
    BundleKindError,
    InputError,
    MemoryPlanError,
)
from ortolan.runtime.loading import load

IDS = [5, 7, 11, 13]


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return open_bundle(write_bundle(tmp_path / "bundle", tokenizer=tokenizer_json()).path)


def refused(bundle: Bundle, folder: Path) -> str:
    with pytest.raises(AdapterError) as caught:
        load(bundle.path, adapters={"mine": folder})
    return str(caught.value)


def test_adapter_of_another_bundle_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    other = open_bundle(write_bundle(tmp_path / "other", seed=1).path)
    folder = write_adapter(tmp_path / "adapter", other, random_factors(other))
    assert "made for another bundle" in refused(bundle, folder)


def damage(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return apply


def described(**changes: Any) -> Callable[[Path], object]:
    def change(data: bytes) -> bytes:
        return json.dumps(json.loads(data) | changes).encode()

    return damage(NAME, change)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda folder: (folder / NAME).unlink(), "not an adapter"),
    "empty": (damage(NAME, lambda data: b""), "adapter.json is invalid"),
    "cut": (damage(NAME, lambda data: data[:-20]), "adapter.json is invalid"),
    "deep": (damage(NAME, lambda data: b"[" * 100_000), "adapter.json is invalid"),
    "long": (damage(NAME, lambda data: data + b" " * limits.MAX_MANIFEST_BYTES), "more than"),
    "newer": (described(schema=2), "expected an adapter of schema 1, got 2"),
    "unknown field": (described(more=1), "adapter.json is invalid"),
    "no updates": (described(updates=[]), "adapter.json is invalid"),
    "no blob": (lambda folder: (folder / BLOB).unlink(), "adapter.bin is missing"),
    "cut blob": (damage(BLOB, lambda data: data[:-4]), "adapter.bin: expected"),
    "other bytes": (damage(BLOB, lambda data: bytes(len(data))), "expected sha256"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_adapter_is_refused(bundle: Bundle, tmp_path: Path, kind: str) -> None:
    apply, message = DAMAGE[kind]
    folder = write_adapter(tmp_path / "adapter", bundle, random_factors(bundle))
    apply(folder)
    text = refused(bundle, folder)
    assert message in text
    assert "ortolan adapter" in text


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


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(
    bundle: Bundle, tmp_path: Path, value: float
) -> None:
    factors = random_factors(bundle)
    factors["0.v"].second[1, 3] = value
    folder = write_adapter(tmp_path / "adapter", bundle, factors)
    assert "the update of 0.v has numbers that are not finite" in refused(bundle, folder)


def test_weights_that_the_bundle_does_not_multiply_by_are_refused(
    bundle: Bundle, tmp_path: Path
) -> None:
    ones = np.ones((32, 1), np.float32)
    cases = {
        "embedding": (Factors(np.ones((VOCABULARY, 1), np.float32), ones.T), "in no product"),
        "7.q": (Factors(ones, np.ones((1, 64), np.float32)), "in no product"),
        "0.q": (Factors(ones, np.ones((1, 63), np.float32)), r"as (64, 32)"),
    }
    for name, (factors, message) in cases.items():
        folder = write_adapter(tmp_path / name, bundle, {name: factors})
        assert f"updates {name} as a float32 matrix" in refused(bundle, folder)
        assert message in refused(bundle, folder)


def test_too_many_or_too_large_adapters_are_refused(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_adapter(tmp_path / "adapter", bundle, random_factors(bundle))
    most = limits.MAX_ADAPTERS
    with pytest.raises(InputError, match="at most 64 per model"):
        load(bundle.path, adapters=dict.fromkeys(map(str, range(most + 1)), folder))
    size = (folder / BLOB).stat().st_size
    monkeypatch.setattr(limits, "MAX_ADAPTER_BYTES", size)
    load(bundle.path, adapters={"a": folder})
    with pytest.raises(AdapterError, match="All adapters together"):
        load(bundle.path, adapters={"a": folder, "b": folder})
    monkeypatch.setattr(limits, "MAX_ADAPTER_BYTES", size - 1)
    assert "an adapter may have at most" in refused(bundle, folder)


@pytest.mark.parametrize(
    ("adapters", "message"),
    [
        ("adapter/", "must be a mapping"),
        ({1: "adapter/"}, "a name must have 1 to 128 characters"),
        ({"": "adapter/"}, "a name must have"),
        ({"a": None}, "adapters must be a path"),
    ],
)
def test_wrong_types_are_refused(bundle: Bundle, adapters: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(bundle.path, adapters=adapters)


def test_a_link_instead_of_a_file_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", bundle, random_factors(bundle))
    (folder / NAME).rename(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", folder / NAME)
    assert "a symbolic link" in refused(bundle, folder)


def test_other_kinds_of_bundle_are_refused(tmp_path: Path) -> None:
    path = tiny_encoder.write_bundle(tmp_path / "encoder").path
    with pytest.raises(BundleKindError, match="adapters: expected a decoder"):
        load(path, adapters={"a": tmp_path})


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
