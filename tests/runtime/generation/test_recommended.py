"""Sampling recommended by `generation_config.json`: read, used and shown."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.chat.tiny_chat import TEMPLATE, USER
from tests.runtime.tiny_decoder import BOS, EOS, tokenizer_json, write_bundle

from ortolan.cli import main
from ortolan.runtime import Decoder, Sampling, load
from ortolan.runtime.bundle.manifest import Tokens

LLAMA_3 = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 4096}
QWEN_2_5 = LLAMA_3 | {"repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
PENALTY = {"repetition_penalty": 1.9, "temperature": 0.6}


def write_model(folder: Path, values: Any) -> Decoder:
    data = values if isinstance(values, bytes) else json.dumps(values).encode()
    others = {"generation_config.json": data, "chat_template.jinja": TEMPLATE.encode()}
    tokens = Tokens(bos=BOS, eos=(EOS,))
    bundle = write_bundle(
        folder / "bundle", tokenizer=tokenizer_json(), tokens=tokens, others=others
    )
    return load(bundle.path, Decoder)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, Sampling()),
        (LLAMA_3, Sampling(temperature=0.6, top_p=0.9)),
        (QWEN_2_5, Sampling(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05)),
        ({"do_sample": True}, Sampling(temperature=1.0)),
        ({"do_sample": True, "min_p": 0.1, "top_k": None}, Sampling(temperature=1.0, min_p=0.1)),
        ({"do_sample": False, "temperature": 0.6}, Sampling()),
        (PENALTY, Sampling(repetition_penalty=1.9)),
        ({"eos_token_id": [1, 2], "transformers_version": "5.0"}, Sampling()),
    ],
)
def test_the_file_is_recommended(
    values: dict[str, Any], expected: Sampling, tmp_path: Path
) -> None:
    assert write_model(tmp_path, values).recommended_sampling == expected


def test_generate_uses_the_recommendation_on_request(tmp_path: Path) -> None:
    model = write_model(tmp_path, PENALTY)
    own = Sampling(repetition_penalty=1.9)
    expected = model.generate("hello", max_new_tokens=12, sampling=own)
    assert model.generate("hello", max_new_tokens=12, sampling="model").tokens == expected.tokens
    assert model.generate("hello", max_new_tokens=12).tokens != expected.tokens
    warm = model.generate("hello", max_new_tokens=12, sampling="model", temperature=1e-9)
    assert warm.tokens == expected.tokens


def test_chat_uses_the_recommendation_by_default(tmp_path: Path) -> None:
    model = write_model(tmp_path, PENALTY)
    prompt = model.chat_template.prompt([USER]).ids
    own = model.generate(prompt, max_new_tokens=12, sampling=Sampling(repetition_penalty=1.9))
    greedy = model.generate(prompt, max_new_tokens=12)
    assert own.tokens != greedy.tokens
    assert model.chat([USER], max_new_tokens=12).completion.tokens == own.tokens
    assert model.conversation().ask("Hi.", max_new_tokens=12).completion.tokens == own.tokens
    for options in ({"sampling": None}, {"sampling": Sampling()}):
        reply = model.chat([USER], max_new_tokens=12, **options)
        assert reply.completion.tokens == greedy.tokens


BROKEN: dict[str, Any] = {
    "number": {"do_sample": True, "top_p": 7},
    "flag": {"do_sample": "yes"},
    "list": b"[1, 2]",
    "bytes": b"\xff",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_where_it_is_used(
    tmp_path: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    model = write_model(tmp_path, BROKEN[name])
    assert model.generate("hello", max_new_tokens=2).tokens
    text = refusal(lambda: model.generate("hello", sampling="model"))
    assert text == refusal(lambda: model.chat([USER])) == snapshot


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["ortolan", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 0


def test_inspect_shows_recommended_and_ignored_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(
        write_model(tmp_path, LLAMA_3 | {"no_repeat_ngram_size": 3, "num_beams": 1}).bundle.path
    )
    command(monkeypatch, "inspect", path, "--no-isolate")
    out = capsys.readouterr().out
    assert "temperature 0.6, top_p 0.9" in out
    assert "max_length 4096, no_repeat_ngram_size 3" in out
    command(monkeypatch, "inspect", path, "--no-isolate", "--json")
    about = json.loads(capsys.readouterr().out)
    assert about["sampling"] == {"temperature": 0.6, "top_p": 0.9}
    assert about["not_applied"] == {"max_length": 4096, "no_repeat_ngram_size": 3}
