"""The options of a request: what each does to a text, and which are refused."""

from pathlib import Path
from typing import Any

import pytest
from tests.runtime.tiny_decoder import BOS, EOS, tokenizer_json, write_bundle

from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.decoder import Decoder
from ortolan.runtime.errors import ContextLengthError, InputError, TokenizerError
from ortolan.runtime.generation.options import Options, checked_options
from ortolan.runtime.generation.request_reader import RequestReader
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.loading import load

SAMPLING = Sampling(temperature=3.0, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("options")


@pytest.fixture(scope="module")
def model(folder: Path) -> Decoder:
    tokens = Tokens(bos=BOS, eos=(EOS,))
    bundle = write_bundle(folder / "bundle", tokenizer=tokenizer_json(), tokens=tokens)
    return load(bundle.path, Decoder)


# --- what each does ---------------------------------------------------------------------------


def test_a_stop_token_ends_the_text_and_is_a_token_but_no_text(model: Decoder) -> None:
    whole = model.generate("hello", max_new_tokens=9, ignore_eos=True)
    last = whole.tokens[5]
    end = whole.tokens.index(last) + 1
    done = model.generate("hello", max_new_tokens=9, ignore_eos=True, stop_tokens=[last])
    assert (done.tokens, done.finish_reason) == (whole.tokens[:end], "stop")
    assert done.text == whole.text[: end - 1]


@pytest.mark.parametrize("fewest", [0, 1, 7])
def test_a_text_ends_no_sooner_than_after_its_fewest_tokens(model: Decoder, fewest: int) -> None:
    ends = Sampling(logit_bias={EOS: 1000.0})
    done = model.generate("hello", max_new_tokens=9, min_new_tokens=fewest, sampling=ends)
    assert EOS not in done.tokens[:-1]
    assert (done.tokens[-1], len(done.tokens), done.finish_reason) == (EOS, fewest + 1, "stop")


def test_n_completions_are_those_of_the_prompt_as_often(model: Decoder) -> None:
    options: Options = {"max_new_tokens": 9, "sampling": SAMPLING, "ignore_eos": True}
    several = model.generate(["hello", "a"], n=2, **options)
    listed = model.generate(["hello", "hello", "a", "a"], **options)
    assert [done.tokens for done in several] == [done.tokens for done in listed]
    assert [done.tokens for done in model.generate("hello", n=2, **options)] == [
        done.tokens for done in several[:2]
    ]
    assert len(model.generate("hello", n=1, **options)) == 1


def test_requests_are_read_without_a_model(model: Decoder) -> None:
    reader = RequestReader(model.manifest, model.tokenizer)
    first, second = reader.prompts(["hello", []], {"max_new_tokens": 4, "sampling": SAMPLING})
    assert (len(first.prompt), second.prompt, first.limit) == (5, [BOS], 4)
    assert (first.sampling.seed, second.sampling.seed) == (3, 4)
    assert reader.sequence(first).finish_reason is None


# --- what is refused --------------------------------------------------------------------------


def test_an_unknown_option_is_an_error_that_names_the_known(model: Decoder) -> None:
    unknown: Any = {"max_tokens": 3}
    said = "'max_tokens'.*max_new_tokens"
    for refuse in (model.generate, model.stream):
        with pytest.raises(InputError, match=said):
            refuse("hello", **unknown)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_new_tokens": -1}, "min_new_tokens must be"),
        ({"min_new_tokens": True}, "min_new_tokens"),
        ({"min_new_tokens": 4, "max_new_tokens": 3}, "min_new_tokens must be"),
        ({"stop_tokens": [97]}, "97"),
        ({"stop_tokens": "a"}, "stop_tokens must"),
        ({"stop_tokens": [1] * 65}, "stop_tokens must be"),
        ({"sampling": {}}, "sampling must be"),
        ({"stop": 5}, "stop must be a list"),
        ({"max_new_tokens": 0}, "max_new_tokens must be"),
    ],
)
def test_what_an_option_cannot_be_is_an_error(
    model: Decoder, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        model.generate("hello", **options)


@pytest.mark.parametrize("n", [0, True, "2", 257])
def test_a_count_of_completions_that_is_none_is_an_error(model: Decoder, n: Any) -> None:
    with pytest.raises(InputError):
        model.generate("hello", n=n, max_new_tokens=1)


def test_stop_texts_need_a_tokenizer(model: Decoder) -> None:
    with pytest.raises(TokenizerError, match="stop"):
        checked_options({"stop": ["a"]}, model.manifest, None)


def test_a_prompt_beyond_the_context_is_refused_by_the_reader(model: Decoder) -> None:
    reader = RequestReader(model.manifest, model.tokenizer)
    with pytest.raises(ContextLengthError):
        reader.prompts([[1] * model.manifest.context_length], {})
