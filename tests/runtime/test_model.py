"""`Decoder` and `load`: what a loaded model offers, and what it rejects."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.conftest import POISON
from tests.runtime.tiny_decoder import (
    BOS,
    CONTEXT,
    EOS,
    VOCABULARY,
    TinyDecoder,
    assert_close,
    write_bundle,
)

from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import BundleFileError, DeviceError, MemoryPlanError, NumericError
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.runtime.loading import load


def test_a_loaded_model_describes_itself(tiny: TinyDecoder, model: Decoder) -> None:
    assert (model.device, model.threads) == ("cpu", 1)
    assert model.bundle.path == tiny.path
    assert model.manifest is model.bundle.manifest
    assert isinstance(model.tokenizer, Tokenizer)
    described = f"{tiny.path}: fp32, context {CONTEXT}"
    assert repr(model) == f"<Decoder of {described}, on cpu>"
    assert repr(model.bundle).startswith(f"<Bundle {described}, decoder, ")


# --- logits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 63, 513, CONTEXT])
def test_logits_equal_the_reference(tiny: TinyDecoder, model: Decoder, count: int) -> None:
    tokens = np.random.default_rng(count).integers(0, VOCABULARY, count)
    logits = model.logits(tokens)
    assert logits.shape == (count, VOCABULARY)
    assert logits.dtype == np.float32
    assert_close(logits, tiny.reference(tokens.tolist()))


@pytest.mark.parametrize(("position", "part"), [(0, "0 to 63"), (600, "576 to 639")])
def test_logits_that_are_not_finite_name_their_positions(
    poisoned: Decoder, position: int, part: str
) -> None:
    tokens = [1] * 700
    tokens[position] = POISON
    with pytest.raises(NumericError, match=f"at positions {part}"):
        poisoned.logits(tokens)


# --- loading ----------------------------------------------------------------------------------


def test_loading_checks_memory_and_device(
    tiny: TinyDecoder, memory_left: Callable[[int], None]
) -> None:
    with pytest.raises(DeviceError, match="device 'cuda'"):
        load(tiny.path, device="cuda")
    memory_left(1000)
    with pytest.raises(MemoryPlanError, match="to load"):
        load(tiny.path)


def test_only_a_full_check_detects_a_changed_weight(tmp_path: Path) -> None:
    tiny = write_bundle(tmp_path / "changed")
    (blob,) = tiny.path.glob("weights-*.bin")
    data = bytearray(blob.read_bytes())
    data[100] ^= 1
    blob.write_bytes(data)
    load(tiny.path)
    with pytest.raises(BundleFileError, match=blob.name):
        load(tiny.path, full_check=True)


def test_a_model_keeps_its_weights_when_the_bundle_is_replaced(tmp_path: Path) -> None:
    old, new = write_bundle(tmp_path / "old"), write_bundle(tmp_path / "new", seed=1)
    model = load(old.path)
    expected = model.logits([1, 2, 3])
    for file in new.path.iterdir():
        os.replace(file, old.path / file.name)
    np.testing.assert_array_equal(model.logits([1, 2, 3]), expected)
    assert_close(load(old.path).logits([1, 2, 3]), new.reference([1, 2, 3]))


# --- prompts ----------------------------------------------------------------------------------


def test_memory_is_checked_for_the_requested_tokens(
    model: Decoder, memory_left: Callable[[int], None]
) -> None:
    memory_left(20 * model.manifest.state_bytes("append") + 4 * VOCABULARY)
    with pytest.raises(MemoryPlanError, match=r"1 x 21 tokens.*Lower max_new_tokens"):
        model.generate([1, 2, 3], max_new_tokens=18)
    with pytest.raises(MemoryPlanError):
        model.stream([1, 2, 3], max_new_tokens=18)
    assert len(model.generate([1, 2, 3], max_new_tokens=17, ignore_eos=True).tokens) == 17
    # without max_new_tokens, a sequence may end at once
    model.generate([1, 2, 3], cancel=lambda: True)


def test_an_empty_prompt_stands_for_bos(model: Decoder) -> None:
    expected = model.generate([BOS], max_new_tokens=5).tokens
    empty: tuple[Any, ...] = ("", np.array([], np.int64))
    for prompt in empty:
        assert model.generate(prompt, max_new_tokens=5).tokens == expected
    for prompt in (*empty, []):
        assert model.generate([prompt, [1]], max_new_tokens=5)[0].tokens == expected
    nothing: list[str] = []
    assert model.generate(nothing, max_new_tokens=5) == []


def test_text_and_ids_may_be_mixed(model: Decoder) -> None:
    assert model.tokenizer is not None
    ids = model.tokenizer.encode("hello")
    prompts: list[Any] = ["hello", ids, np.array(ids)]
    rows = model.generate(prompts, max_new_tokens=6)
    assert rows[0].tokens == rows[1].tokens == rows[2].tokens


def test_suppressed_and_forced_tokens_of_the_manifest_apply(tmp_path: Path, bare: Decoder) -> None:
    free = bare.generate([1, 2, 3], max_new_tokens=6)
    first = bare.generate([4], max_new_tokens=1).tokens
    tokens = Tokens(suppressed=free.tokens[:2], suppressed_first=first, forced_last=EOS)
    bound = load(write_bundle(tmp_path / "bound", tokens=tokens).path)
    got = bound.generate([1, 2, 3], max_new_tokens=6).tokens
    assert not {*free.tokens[:2]} & {*got[:-1]}
    assert got[-1] == EOS
    assert bound.generate([4], max_new_tokens=2).tokens[:1] != first
