"""Nonsense in any argument is accepted or a typed error, and changes nothing."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import nonsense
from tests.runtime import tiny_encoder
from tests.runtime.tiny_decoder import BOS, EOS, tokenizer_json, write_bundle

import ortolan
from ortolan.errors import OrtolanError
from ortolan.runtime.arguments import (
    checked_count,
    checked_flag,
    checked_path,
    checked_seconds,
)
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.errors import ComputeError, InputError, shown
from ortolan.runtime.verification.replay import verify

Call = Callable[[Any, Any], object]

USER = [{"role": "user", "content": "a"}]

OPTIONS = (
    *("min_new_tokens", "sampling", "temperature", "stop", "stop_tokens", "ignore_eos"),
    *("logprobs", "prompt_logprobs", "grammar", "cancel", "draft", "n"),
)
"""Options of `generate`."""


def _generate(option: str, model: Any, value: Any) -> object:
    return model.generate([1], max_new_tokens=1, **{option: value})


CALLS: dict[str, Call] = {
    "prompt": lambda model, value: model.generate(value, max_new_tokens=1),
    "max_new_tokens": lambda model, value: model.generate([1], max_new_tokens=value),
    **{name: partial(_generate, name) for name in OPTIONS},
    "decode": lambda model, value: model.tokenizer.decode(value),
    "labels": lambda model, value: model.tokenizer.labels(value),
    "slots": lambda model, value: model.serve(slots=value).close(),
    "chunk": lambda model, value: model.serve(mode="fast", chunk=value).close(),
    "mode": lambda model, value: model.serve(mode=value).close(),
    "priority": lambda model, value: _served(model, priority=value).completion(),
    "timeout": lambda model, value: _served(model).completion(value),
    "variables": lambda model, value: model.chat(USER, variables=value, max_new_tokens=1),
    "load conversation": lambda model, value: model.conversation().load(value),
    "save conversation": lambda model, value: model.conversation().save(value),
    "regex": lambda _, value: ortolan.Grammar.regex(value),
    "json schema": lambda _, value: ortolan.Grammar.json_schema(value),
    "grammar source": lambda _, value: ortolan.Grammar(value),
    "load": lambda _, value: ortolan.load(value),
    "open": lambda _, value: open_bundle(value),
    "verify": lambda _, value: verify(value),
    "kind": lambda model, value: ortolan.load(model.bundle.path, value),
    "device": lambda model, value: ortolan.load(model.bundle.path, device=value),
    "threads": lambda model, value: ortolan.load(model.bundle.path, threads=value),
    "full_check": lambda model, value: ortolan.load(model.bundle.path, full_check=value),
    "rewind": lambda model, value: _after_two(model).rewind(value),
    "restore": lambda model, value: _after_two(model).restore(value),
    "save": lambda model, value: _after_two(model).save(value),
    "load_session": lambda model, value: model.load_session(value),
}


ENCODER_CALLS: dict[str, Call] = {
    "prompt of a model": lambda model, value: model.embed("a b", prompt=value),
    "truncate": lambda model, value: model.embed("a b", truncate=value),
    "inputs": lambda model, value: model.embed(value),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("arguments") / "bundle"
    write_bundle(
        folder,
        tokenizer=tokenizer_json(),
        tokens=Tokens(bos=BOS, eos=(EOS,)),
        others={"chat_template.jinja": b"{{ messages[0].content }}"},
    )
    return ortolan.load(folder, threads=1)


def _after_two(model: Any) -> Any:
    session = model.session()
    session.append([1, 2])
    return session


def _served(model: Any, **options: Any) -> Any:
    with model.serve(slots=2) as service:
        return service.submit([1], max_new_tokens=1, **options)


def check_nonsense(call: Call, model: Any, probe: Callable[[], Any]) -> None:
    """Pass nonsense to a call, which may raise typed errors, and compare a fixed request."""
    expected = probe()
    for value in nonsense.ARGUMENTS:
        try:
            call(model, value)
        except OrtolanError as error:
            assert str(error), value  # noqa: PT017 - not every value is refused
        np.testing.assert_array_equal(probe(), expected)


@pytest.mark.parametrize("name", CALLS)
def test_nonsense_is_accepted_or_a_typed_error(
    model: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # "x" is a path
    probe = partial(model.generate, [1, 2, 3], max_new_tokens=4)
    check_nonsense(CALLS[name], model, lambda: probe().tokens)


@pytest.mark.parametrize(
    "name",
    ["max_new_tokens", "min_new_tokens", "n", "logprobs", "priority", "slots", "rewind", "threads"],
)
def test_numpy_integers_are_accepted_and_booleans_refused(model: Any, name: str) -> None:
    CALLS[name](model, np.int64(1))
    with pytest.raises(InputError, match="must be"):
        CALLS[name](model, True)
    assert model.generate([1], max_new_tokens=np.uint8(2)).tokens


@pytest.mark.parametrize("name", ENCODER_CALLS)
def test_nonsense_for_an_encoder_is_accepted_or_a_typed_error(name: str, tmp_path: Path) -> None:
    tiny_encoder.write_bundle(tmp_path / "bundle", kind="embedding")
    encoder = ortolan.load(tmp_path / "bundle", threads=1)
    check_nonsense(ENCODER_CALLS[name], encoder, lambda: encoder.embed("a b"))


def test_errors_quote_any_value_briefly() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown("a") == "'a'"
    assert len(shown("a" * 10**6)) == 200
    assert shown(10**5000) == "a value of type int"
    assert shown(Silent()) == "a value of type Silent"


@pytest.mark.parametrize(
    "value", [True, "1", None, [], 1j, float("nan"), 1e300, pytest.param(10**5000, id="long")]
)
def test_seconds_must_be_a_number_a_lock_can_wait(value: object) -> None:
    with pytest.raises(InputError, match="timeout must be"):
        checked_seconds("timeout", value)


def test_an_error_of_a_kernel_is_typed(model: Any) -> None:
    session = model._engine.ort_session(1)
    names = [value.name for value in session.get_inputs()]

    with pytest.raises(ComputeError, match="onnxruntime"):
        session.run(None, dict.fromkeys(names, np.zeros((1, 1), np.int64)))


def test_checked_values_are_plain() -> None:
    assert type(checked_count("n", np.uint8(3))) is int
    assert type(checked_flag("flag", np.bool_(True))) is bool
    assert checked_path("path", "a/b") == Path("a/b")
    for value in (b"a", "a\0b", "", 5):
        with pytest.raises(InputError, match="path must be"):
            checked_path("path", value)
