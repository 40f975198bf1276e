"""Numbers, flags and paths in arguments; `tests.hostile.test_arguments` tries nonsense in all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.tiny_decoder import BOS, EOS, tokenizer_json, write_bundle

import ortolan
from ortolan.runtime.arguments import (
    checked_count,
    checked_flag,
    checked_path,
    checked_seconds,
)
from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.errors import ComputeError, InputError, shown

Call = Callable[[Any, Any], object]

CALLS: dict[str, Call] = {
    "max_new_tokens": lambda model, value: model.generate([1], max_new_tokens=value),
    "min_new_tokens": lambda model, value: _generate(model, min_new_tokens=value),
    "n": lambda model, value: _generate(model, n=value),
    "logprobs": lambda model, value: _generate(model, logprobs=value),
    "priority": lambda model, value: _served(model, priority=value).result(),
    "slots": lambda model, value: model.serve(slots=value).close(),
    "rewind": lambda model, value: _after_two(model).rewind(value),
    "threads": lambda model, value: ortolan.load(model.bundle.path, threads=value),
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


def _generate(model: Any, **options: Any) -> object:
    return model.generate([1], max_new_tokens=1, **options)


@pytest.mark.parametrize("name", CALLS)
def test_numpy_integers_are_accepted_and_booleans_refused(model: Any, name: str) -> None:
    CALLS[name](model, np.int64(1))
    with pytest.raises(InputError, match="must be"):
        CALLS[name](model, True)
    assert model.generate([1], max_new_tokens=np.uint8(2)).tokens


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
