import pytest

import sampling


def test_it_prints_a_time_for_each_choice_and_vocabulary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sampling, "SIZES", (50, 60))
    sampling.main([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| | 50 | 60 |"
    assert len(lines) == 2 + len(sampling.CHOICES)
    assert all(line.count(" us |") == 2 for line in lines[2:])
