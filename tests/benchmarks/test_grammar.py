from pathlib import Path

import pytest
from tests.runtime.tiny_decoder import tokenizer_json, write_bundle

import grammar


def test_it_prints_a_time_for_each_grammar(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write_bundle(tmp_path / "bundle", tokenizer=tokenizer_json())
    monkeypatch.setattr(grammar, "PROMPT", "users:")
    grammar.main(["--bundle", str(bundle.path), "-n", "4", "-r", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| | none | schema | anything |"
    assert len(lines) == 2 + len(grammar.CHOICES)
    assert all(line.count(" ms |") == 3 for line in lines[2:])
