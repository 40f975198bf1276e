import json
from pathlib import Path

import pytest

import chart
import report
from rounds import Loaded, Run

LOADED = Loaded(load_s=1.5, model_bytes=2**20)


def run(
    peer: str,
    number: int,
    *,
    prefill_s: float = 1,
    decode_s: float = 1,
    tokens: str = "four",
    prompt_tokens: int = 8,
) -> Run:
    return Run(
        peer=peer,
        round=number,
        prompt_tokens=prompt_tokens,
        tokens=tuple(map(ord, tokens)),
        prefill_s=prefill_s,
        decode_s=decode_s,
        peak_bytes=None,
    )


def test_ratios_are_taken_within_rounds() -> None:
    # Round 1 ran while the machine was twice as slow: the ratios do not show it.
    runs = [
        run("a", 0, prefill_s=1.0, decode_s=2.0, tokens="same"),
        run("b", 0, prefill_s=2.0, decode_s=2.0, tokens="same"),
        run("b", 1, prefill_s=4.0, decode_s=6.0, tokens="salt"),
        run("a", 1, prefill_s=2.0, decode_s=4.0, tokens="same"),
    ]
    compared = report.compare(runs, peer="a", other="b", prompt_tokens=8)
    assert str(compared.prefill) == "2.00 (2.00-2.00)"
    assert str(compared.decode) == "1.25 (1.00-1.50)"
    assert compared.same_tokens == 2


def test_speeds_are_medians_and_the_first_token_belongs_to_the_prefill() -> None:
    runs = [
        run("a", number, prefill_s=prefill_s, decode_s=0.5, prompt_tokens=100)
        for number, prefill_s in enumerate((0.1, 0.2, 9.9))
    ]
    result = report.speed(runs, peer="a", prompt_tokens=100, new_tokens=4)
    assert result.prefill_per_s == pytest.approx(500)
    assert result.decode_per_s == pytest.approx(6)


def test_report_compares_the_first_peer_with_the_others_at_each_length(tmp_path: Path) -> None:
    runs = [run(peer, 0, prompt_tokens=length) for length in (8, 32) for peer in "abc"]
    results = report.summarize(runs, {peer: LOADED for peer in "abc"}, new_tokens=4)
    assert [(row.peer, row.other, row.prompt_tokens) for row in results.comparisons] == [
        *(("a", "b", 8), ("a", "c", 8)),
        *(("a", "b", 32), ("a", "c", 32)),
    ]
    assert [row.prefill_per_s for row in results.speeds] == [8] * 3 + [32] * 3
    # Peers of lower precision are not expected to generate the same tokens.
    for exact, columns, last in ((True, 6, "| 4/4 |"), (False, 5, "| 1.00 (1.00-1.00) |")):
        lines = report.speed_table(results, 8, new_tokens=4, exact=exact).splitlines()
        assert [line.count("|") - 1 for line in lines] == [columns] * 5
        assert lines[3].endswith(last)

    setting = {
        **{"checkpoint": "tiny", "precision": "int4", "threads": 2, "new_tokens": 4},
        **{"rounds": 1, "starts": 2, "machine": {"processor": "CPU", "cores": 2}},
        "versions": {"a": {"engine": "1.0"}, "b": {"engine": "1.0", "builder": "2"}},
    }
    text = report.markdown(results, setting)
    assert text.startswith("# Speed of tiny, int4, 2 threads\n")
    assert "2 starts with 1 round each." in text
    assert text.count("| a |") == 3
    assert "| c | 1.50 |  | 1 |" in text
    assert text.endswith("With builder 2, engine 1.0.\n")

    written = json.loads(json.dumps(report.document(results, runs)))
    assert [entry["peer"] for entry in written["runs"]] == [*"abcabc"]
    assert "tokens" not in written["runs"][0]
    assert written["comparisons"][0]["prefill"]["median"] == 1

    chart.draw(results.speeds, tmp_path / "chart.png", title="tiny", highlighted="a")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
