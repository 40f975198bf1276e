"""Benchmarks of choices that print a table of times."""

from pathlib import Path

import pytest
from tests.runtime.tiny_decoder import tokenizer_json, write_bundle

import grammar
import sampling


def test_each_grammar_has_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write_bundle(tmp_path / "bundle", tokenizer=tokenizer_json())
    monkeypatch.setattr(grammar, "PROMPT", "users:")
    grammar.main(["--bundle", str(bundle.path), "-n", "4", "-r", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| | none | schema | anything |"
    assert [line.count(" ms |") for line in lines[2:]] == [3] * len(grammar.CHOICES)


def test_each_choice_and_vocabulary_has_a_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sampling, "SIZES", (50, 60))
    sampling.main([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| | 50 | 60 |"
    assert [line.count(" us |") for line in lines[2:]] == [2] * len(sampling.CHOICES)
