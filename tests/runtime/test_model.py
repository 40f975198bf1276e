import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.tiny_decoder import (
    BOS,
    CONTEXT,
    EOS,
    VOCABULARY,
    TinyDecoder,
    assert_close,
    tokenizer_json,
    write_bundle,
)

from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.errors import (
    BundleFileError,
    ContextLengthError,
    DeviceError,
    ForkedError,
    InputError,
    MemoryPlanError,
    NumericError,
    SamplingError,
    TokenizerError,
)
from ortolan.runtime.generation.sampling import Sampling
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.runtime.loading import load

POISON = 13


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDecoder:
    folder = tmp_path_factory.mktemp("model") / "bundle"
    return write_bundle(folder, tokenizer=tokenizer_json(), tokens=Tokens(bos=BOS, eos=(EOS,)))


@pytest.fixture(scope="module")
def model(tiny: TinyDecoder) -> Decoder:
    return load(tiny.path, Decoder)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """The same weights, with neither a tokenizer nor special tokens."""
    return load(write_bundle(tmp_path_factory.mktemp("model") / "bare").path, Decoder)


def test_a_loaded_model_says_what_it_is(tiny: TinyDecoder, model: Decoder) -> None:
    assert model.device == "cpu"
    assert model.bundle.path == tiny.path
    assert model.manifest is model.bundle.manifest
    assert isinstance(model.tokenizer, Tokenizer)


@pytest.mark.parametrize("count", [1, 63, 513, CONTEXT])
def test_logits_are_those_of_the_reference(tiny: TinyDecoder, model: Decoder, count: int) -> None:
    tokens = np.random.default_rng(count).integers(0, VOCABULARY, count)
    logits = model.logits(tokens)
    assert logits.shape == (count, VOCABULARY)
    assert logits.dtype == np.float32
    assert_close(logits, tiny.reference(tokens.tolist()))


def test_logits_of_more_than_the_context_are_an_error(model: Decoder) -> None:
    with pytest.raises(ContextLengthError, match=f"{CONTEXT + 1}"):
        model.logits([0] * (CONTEXT + 1))


@pytest.mark.parametrize("wrong", [[], [97], [-1], ["a"], "text", 3])
def test_logits_of_what_is_no_sequence_of_ids_are_an_error(model: Decoder, wrong: Any) -> None:
    with pytest.raises(InputError, match=r"^ids "):
        model.logits(wrong)


@pytest.mark.parametrize(("position", "part"), [(0, "0 to 63"), (600, "576 to 639")])
def test_logits_that_are_not_finite_are_an_error_that_names_the_positions(
    tmp_path_factory: pytest.TempPathFactory, position: int, part: str
) -> None:
    folder = tmp_path_factory.mktemp("model") / "poisoned"
    model = load(write_bundle(folder, poisoned=POISON).path)
    tokens = [1] * 700
    tokens[position] = POISON
    with pytest.raises(NumericError, match=f"at positions {part}"):
        model.logits(tokens)


def test_a_model_whose_copies_do_not_fit_is_not_loaded(
    tiny: TinyDecoder, memory_left: Callable[[int], None]
) -> None:
    memory_left(1000)
    with pytest.raises(MemoryPlanError, match="to load"):
        load(tiny.path)


def test_a_request_that_does_not_fit_is_refused_by_the_tokens_it_asks_for(
    model: Decoder, memory_left: Callable[[int], None]
) -> None:
    memory_left(20 * model.manifest.state_bytes("append") + 4 * VOCABULARY)
    with pytest.raises(MemoryPlanError, match=r"1 x 21 tokens.*Lower max_new_tokens"):
        model.generate([1, 2, 3], max_new_tokens=18)
    with pytest.raises(MemoryPlanError):
        model.stream([1, 2, 3], max_new_tokens=18)
    assert len(model.generate([1, 2, 3], max_new_tokens=17, ignore_eos=True).tokens) == 17
    # without a number, a text may end at once
    model.generate([1, 2, 3], cancel=lambda: True)


def test_a_device_that_the_bundle_does_not_list_is_an_error(tiny: TinyDecoder) -> None:
    with pytest.raises(DeviceError, match="device 'cuda'"):
        load(tiny.path, device="cuda")


def test_an_altered_weight_is_found_by_a_full_check_alone(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tiny = write_bundle(tmp_path_factory.mktemp("model") / "altered")
    (blob,) = tiny.path.glob("weights-*.bin")
    data = bytearray(blob.read_bytes())
    data[100] ^= 1
    blob.write_bytes(data)
    load(tiny.path)
    with pytest.raises(BundleFileError, match=blob.name):
        load(tiny.path, full_check=True)


def test_a_model_keeps_its_weights_when_the_bundle_is_replaced(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("model")
    old, new = write_bundle(folder / "old"), write_bundle(folder / "new", seed=1)
    model = load(old.path)
    expected = model.logits([1, 2, 3])
    for file in new.path.iterdir():
        os.replace(file, old.path / file.name)
    np.testing.assert_array_equal(model.logits([1, 2, 3]), expected)
    assert_close(load(old.path).logits([1, 2, 3]), new.reference([1, 2, 3]))


def test_a_model_of_another_process_is_refused(
    tiny: TinyDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tiny.path)
    monkeypatch.setattr(model._engine, "is_stranded", True)
    with pytest.raises(ForkedError, match=r"os\.fork"):
        model.logits([1])
    with pytest.raises(ForkedError, match=r"os\.fork"):
        model.generate([1], max_new_tokens=1)


# --- requests ---------------------------------------------------------------------------------


def test_an_empty_prompt_stands_for_the_beginning_of_text(model: Decoder) -> None:
    expected = model.generate([BOS], max_new_tokens=5).tokens
    empty: tuple[Any, ...] = ("", np.array([], np.int64))
    for prompt in empty:
        assert model.generate(prompt, max_new_tokens=5).tokens == expected
        assert model.generate([prompt, [1]], max_new_tokens=5)[0].tokens == expected
    assert model.generate([[], [1]], max_new_tokens=5)[0].tokens == expected


def test_an_empty_list_is_a_batch_of_none(model: Decoder) -> None:
    nothing: list[str] = []
    assert model.generate(nothing, max_new_tokens=5) == []
    with pytest.raises(InputError, match="single prompt"):
        model.stream([])


def test_an_empty_prompt_without_a_beginning_of_text_is_an_error(bare: Decoder) -> None:
    with pytest.raises(InputError, match="no BOS token"):
        bare.generate(np.array([], np.int64))


def test_text_and_ids_may_be_mixed(model: Decoder) -> None:
    assert model.tokenizer is not None
    ids = model.tokenizer.encode("hello")
    prompts: list[Any] = ["hello", ids, np.array(ids)]
    rows = model.generate(prompts, max_new_tokens=6)
    assert rows[0].tokens == rows[1].tokens == rows[2].tokens


@pytest.mark.parametrize("prompt", [[-1], [97], [True], [1.5], [None], 7, {"a": 1}, b"x", [[[1]]]])
def test_a_prompt_that_is_none_is_an_error(model: Decoder, prompt: Any) -> None:
    with pytest.raises(InputError, match=r"^prompt "):
        model.generate(prompt, max_new_tokens=3)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.0, "3"])
def test_max_new_tokens_that_is_no_count_is_an_error(model: Decoder, wrong: Any) -> None:
    with pytest.raises(InputError, match="max_new_tokens"):
        model.generate("hello", max_new_tokens=wrong)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"sampling": Sampling(), "temperature": 1.0}, InputError),
        ({"temperature": -1.0}, SamplingError),
        ({"sampling": Sampling(logit_bias={97: 1.0})}, SamplingError),
        ({"stop": "text"}, InputError),
        ({"stop": [""]}, InputError),
        ({"cancel": True}, InputError),
        ({"max_new_tokens": CONTEXT}, ContextLengthError),
    ],
)
def test_a_wrong_option_is_an_error_before_anything_is_computed(
    model: Decoder, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], error: type[Exception]
) -> None:
    monkeypatch.setattr(Runner, "step", lambda _: pytest.fail("computed"))
    with pytest.raises(error):
        model.generate("hello", **options)
    with pytest.raises(error):
        model.stream("hello", **options)


def test_too_many_prompts_are_an_error(model: Decoder) -> None:
    with pytest.raises(InputError, match="at most 256"):
        model.generate([[1]] * 257, max_new_tokens=1)


def test_a_list_of_prompts_cannot_be_streamed(model: Decoder) -> None:
    with pytest.raises(InputError, match="single prompt"):
        model.stream(["a", "b"])  # type: ignore[list-item]


def test_temperature_is_short_for_a_sampling(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model.generate("hello", temperature=0.0, max_new_tokens=9).tokens == (
        model.generate("hello", max_new_tokens=9).tokens
    )
    draws = {model.generate("hello", temperature=2.0, max_new_tokens=9).tokens for _ in range(4)}
    assert len(draws) > 1


def test_without_a_tokenizer_ids_give_ids(bare: Decoder, model: Decoder) -> None:
    completion = bare.generate([1, 2, 3], max_new_tokens=9)
    assert completion.tokens == model.generate([1, 2, 3], max_new_tokens=9, ignore_eos=True).tokens
    assert completion.text == ""


def test_without_a_tokenizer_text_is_an_error(bare: Decoder) -> None:
    uses: list[Callable[[], object]] = [
        lambda: bare.generate("hello"),
        lambda: bare.generate([1], stop=["x"]),
        lambda: bare.stream([1]),
    ]
    for use in uses:
        with pytest.raises(TokenizerError, match="no tokenizer"):
            use()


def test_tokens_that_the_manifest_rules_out_or_forces_are(tmp_path: Path) -> None:
    free = load(write_bundle(tmp_path / "free").path).generate([1, 2, 3], max_new_tokens=6)
    tokens = Tokens(suppressed=(free.tokens[0], free.tokens[1]), forced_last=EOS)
    bound = load(write_bundle(tmp_path / "bound", tokens=tokens).path)
    got = bound.generate([1, 2, 3], max_new_tokens=6).tokens
    assert not {*free.tokens[:2]} & {*got[:-1]}
    assert got[-1] == EOS
