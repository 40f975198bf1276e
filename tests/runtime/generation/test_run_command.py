"""`ortolan run` on the bundle of an encoder-decoder."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.runtime import tiny_decoder, tiny_encoder

import ortolan
from ortolan.cli import main
from ortolan.runtime import Seq2Seq

TEXT = "I live here"


class Done(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["ortolan", "run", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        out, err = capsys.readouterr()
        assert isinstance(exit_info.value.code, int)
        return Done(status=exit_info.value.code, out=out, err=err)

    return call


@pytest.fixture(scope="module")
def path(exported: Callable[[str], Path]) -> Path:
    return exported("marian") / "bundle"


@pytest.fixture(scope="module")
def model(path: Path) -> Seq2Seq:
    return ortolan.load(path, Seq2Seq, threads=1)


def test_the_text_of_a_source_streams(run: Run, path: Path, model: Seq2Seq) -> None:
    expected = model.generate(TEXT, max_new_tokens=9)
    done = run(path, TEXT, "-n", "9")
    assert (done.status, done.out) == (0, expected.text + "\n")
    assert f"[{len(expected.tokens)} tokens, " in done.err


def test_n_best_prints_a_score_and_a_text_per_line(run: Run, path: Path, model: Seq2Seq) -> None:
    options: Any = {"beams": 4, "n_best": 3, "length_penalty": 2.0}
    expected = model.generate(TEXT, max_new_tokens=9, **options)
    arguments = ("--beams", "4", "--n-best", "3", "--length-penalty", "2")
    done = run(path, TEXT, "-n", "9", *arguments)
    assert f"{expected.finish_reason}]" in done.err
    lines = done.out.splitlines()
    assert lines[0] == f"{expected.score:.4f}\t{expected.text}"
    assert lines[1:] == [f"{other.score:.4f}\t{other.text}" for other in expected.alternatives]
    assert len(lines) == 3


def test_json_holds_the_translation(run: Run, path: Path, model: Seq2Seq) -> None:
    expected = model.generate(TEXT, beams=2, n_best=2, max_new_tokens=9)
    about = json.loads(run(path, TEXT, "-n", "9", "--beams", "2", "--n-best", "2", "--json").out)
    assert (about["prompt"], about["text"], about["score"]) == (TEXT, expected.text, expected.score)
    assert about["alternatives"][0]["tokens"] == list(expected.alternatives[0].tokens)
    greedy = json.loads(run(path, TEXT, "-n", "9", "--json").out)
    assert greedy["tokens"] == list(model.generate(TEXT, max_new_tokens=9).tokens)


REFUSED: dict[str, tuple[str, ...]] = {
    "option of beams": (TEXT, "--n-best", "2"),
    "empty": ("",),
    "too long": ("a" * 40,),
    "grammar": ("x", "--regex", "("),
    "two grammars": ("x", "--regex", "a", "--lark", __file__),
}


def test_what_does_not_apply_or_fit_fails_in_one_line(
    run: Run, path: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    texts = {name: fails(run(path, *arguments)) for name, arguments in REFUSED.items()}
    encoder = tiny_encoder.write_bundle(tmp_path / "encoder").path
    tokenizer = tiny_decoder.tokenizer_json()
    decoder = tiny_decoder.write_bundle(tmp_path / "decoder", tokenizer=tokenizer).path
    texts["an encoder"] = fails(run(encoder, TEXT))
    texts |= {name: fails(run(decoder, TEXT, name, "2")) for name in ("--beams", "--n-best")}
    assert texts == snapshot


def fails(done: Done) -> str:
    """The line of a command that was refused."""
    assert (done.status, done.out) == (2, "")
    assert done.err.count("\n") == 1
    return done.err.strip()
