"""Tasks beside other runtimes: what a table says, and a whole run with a tiny model."""

from dataclasses import replace
from pathlib import Path

import pytest

import tasks

TINY = {
    **{"vocab_size": 1200, "hidden_size": 32, "intermediate_size": 48},
    **{"num_hidden_layers": 1, "num_attention_heads": 2},
}


def test_a_ratio_is_of_the_same_round_and_the_first_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = [0.0]
    for seconds in (9.0, 1.0, 1.0, 4.0, 2.0, 4.0):  # of both ways, in turn
        ticks += [ticks[-1], ticks[-1] + seconds]
    monkeypatch.setattr("time.perf_counter", iter(ticks[1:]).__next__)
    task = tasks.Task(
        name="encoding",
        words="",
        draw=lambda random: (int(random.integers(9)), None),
        ours=lambda model, given: given,
        theirs=lambda model, given: given,
        agreement=lambda one, other: f"{one == other}",
    )
    ways: dict[str, tasks.Way] = {"ours": (0, int), tasks.REFERENCE: (0, int)}
    rows = tasks.in_turn(ways, task, rounds=2).splitlines()
    assert rows[2] == "| ours | 1500.0 | 3.00 (2.00-4.00) | True |"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_an_encoder_is_compared_with_both_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tasks.SHAPES, "bert-22m", replace(tasks.SHAPES["bert-22m"], config=TINY))
    sizes = ["--precisions", "fp32", "--texts", "4", "-n", "8", "-r", "1"]
    folders = ["--work", str(tmp_path), "--out", str(tmp_path)]
    tasks.measure(tasks.parse(["bert-22m", *sizes, *folders]))
    text = (tmp_path / "encoding-bert-22m.md").read_text()
    assert "4 texts of 8 tokens." in text
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[6:]]
    assert [row[0] for row in rows] == ["fp32", "onnxruntime fp32", tasks.REFERENCE]
    assert {row[-1] for row in rows} == {"1.00000"}
