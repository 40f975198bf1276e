"""What all models refuse alike: closed or forked, without a tokenizer, or with wrong input."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import tiny_encoder

from ortolan.runtime import Decoder, Encoder, Grammar, Seq2Seq, load
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.engine import Engine

KINDS: dict[str, type[Any]] = {"decoder": Decoder, "encoder": Encoder, "translator": Seq2Seq}

Call = Callable[[Any], object]

COMPUTE: dict[str, dict[str, Call]] = {
    "decoder": {
        "logits": lambda model: model.logits([1]),
        "generate": lambda model: model.generate([1], max_new_tokens=1),
        "stream": lambda model: list(model.stream("a", max_new_tokens=1)),
        "session": lambda model: model.session().append([1]),
        "serve": lambda model: model.serve(),
    },
    "encoder": {
        "classify": lambda model: model.classify([2, 4, 3]),
        "serve": lambda model: model.serve(),
    },
    "translator": {
        "logits": lambda model: model.logits([5], [1]),
        "generate": lambda model: model.generate([5], max_new_tokens=1),
        "beams": lambda model: model.generate([5], beams=2, max_new_tokens=1),
        "stream": lambda model: list(model.stream("a", max_new_tokens=1)),
        "serve": lambda model: model.serve(),
    },
}
"""Calls that compute something."""

READ: dict[str, dict[str, Call]] = {
    "decoder": {
        "text": lambda model: model.generate("hello"),
        "stop text": lambda model: model.generate([1], stop=["x"]),
        "stream": lambda model: model.stream([1]),
        "grammar": lambda model: model.generate([1], grammar=Grammar.regex("a")),
        "empty prompt": lambda model: model.generate(np.array([], np.int64)),
    },
    "encoder": {"text": lambda model: model.classify("a")},
    "translator": {
        "text": lambda model: model.generate("text"),
        "stop text": lambda model: model.generate([5], stop=["a"]),
        "first token": lambda model: model.generate([5], first="a"),
        "stream": lambda model: model.stream([5]),
    },
}
"""Calls that need a tokenizer, or a special token."""


def calling(method: str, *values: Any) -> dict[str, Call]:
    return {
        f"{method} {value!r}"[:40]: lambda model, value=value: getattr(model, method)(value)  # type: ignore[misc]
        for value in values
    }


WRONG: dict[str, dict[str, Call]] = {
    "decoder": {
        **calling("generate", [-1], [97], [True], [1.5], [None], 7, {"a": 1}, b"x", [[[1]]]),
        **calling("generate", [[1]] * 257),
        **calling("logits", [], [97], [-1], ["a"], "text", 3, [5] * 2000),
        **calling("stream", ["a", "b"], []),
    },
    "encoder": {
        **calling("classify", "", "\n", ["a", " "], [[]], [[16]], [[-1]], [[1.5]], [None], 5),
        **calling("classify", [[4], [4] * 25]),
    },
    "translator": {
        **calling("generate", "", [[5], []], [5, 97], "a" * 40, 7, [[5]] * 4097),
        **calling("stream", [[5]]),
        "logits of a batch": lambda model: model.logits([[5]], [1]),
        "no ids": lambda model: model.logits([5], []),
        "ids outside": lambda model: model.logits([5], [97]),
        "many ids": lambda model: model.logits([5], [1] * 41),
        "first text": lambda model: model.generate([5], first="some text"),
        "first of nothing": lambda model: model.generate([5], first=""),
        "first outside": lambda model: model.generate([5], first=1000),
        "first flag": lambda model: model.generate([5], first=True),
    },
}
"""Calls with wrong input."""


@pytest.fixture(scope="module")
def paths(
    tmp_path_factory: pytest.TempPathFactory, exported: Callable[[str], Path], tiny: Any
) -> dict[str, Path]:
    encoder = tiny_encoder.write_bundle(tmp_path_factory.mktemp("contract") / "encoder")
    return {
        "decoder": tiny.path,
        "encoder": encoder.path,
        "translator": exported("marian") / "bundle",
    }


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(paths: dict[str, Path], kind: str) -> Any:
    return load(paths[kind], KINDS[kind], threads=1)


def refusals(model: Any, calls: dict[str, Call]) -> dict[str, str]:
    return {name: refusal(lambda call=call: call(model)) for name, call in calls.items()}  # type: ignore[misc]


def test_wrong_input_is_refused(model: Any, kind: str, snapshot: SnapshotAssertion) -> None:
    assert refusals(model, WRONG[kind]) == snapshot


def test_a_closed_model_is_refused(paths: dict[str, Path], kind: str) -> None:
    with load(paths[kind], KINDS[kind], threads=1) as model:
        for call in COMPUTE[kind].values():
            call(model)
    assert set(refusals(model, COMPUTE[kind]).values()) == {
        "InputError: This model is closed. Load the bundle again."
    }


def test_a_forked_process_is_refused(
    paths: dict[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    model = load(paths[kind], KINDS[kind], threads=1)
    monkeypatch.setattr(model._engine, "is_stranded", True)
    (text,) = set(refusals(model, COMPUTE[kind]).values())
    assert text == snapshot


def test_without_a_tokenizer_only_ids_are_accepted(
    paths: dict[str, Path], kind: str, snapshot: SnapshotAssertion
) -> None:
    bundle = open_bundle(paths[kind])
    tokens = msgspec.structs.replace(bundle.manifest.tokens, bos=None)
    manifest = msgspec.structs.replace(bundle.manifest, tokenizer=None, tokens=tokens)
    bare = Bundle(path=bundle.path, manifest=manifest, graphs=bundle.graphs)
    model = KINDS[kind](bare, Engine(bare, threads=1))
    assert refusals(model, READ[kind]) == snapshot
    for name in COMPUTE[kind].keys() - {"stream"}:
        COMPUTE[kind][name](model)
    if kind != "encoder":
        options: Any = {"max_new_tokens": 3, "ignore_eos": True}
        done, whole = (m.generate([5, 6], **options) for m in (model, load(paths[kind])))
        assert (done.tokens, done.text) == (whole.tokens, "")


def test_a_bundle_of_another_kind_is_refused(
    paths: dict[str, Path], kind: str, snapshot: SnapshotAssertion
) -> None:
    others = {name: other for name, other in KINDS.items() if name != kind}
    texts = {name: refusal(lambda o=o: load(paths[kind], o)) for name, o in others.items()}  # type: ignore[misc]
    assert texts == snapshot
    assert type(load(paths[kind])) is KINDS[kind]
