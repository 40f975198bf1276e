from typing import Any

import pytest

import report
import streams
from rounds import Loaded, Run, Turn

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


def test_report_compares_the_first_peer_with_the_others_at_each_length() -> None:
    runs = [run(peer, 0, prompt_tokens=length) for length in (8, 32) for peer in "abc"]
    results = report.summarize(runs, {peer: LOADED for peer in "abc"}, new_tokens=4)
    assert [(row.peer, row.other, row.prompt_tokens) for row in results.comparisons] == [
        *(("a", "b", 8), ("a", "c", 8)),
        *(("a", "b", 32), ("a", "c", 32)),
    ]
    assert [row.prefill_per_s for row in results.speeds] == [8] * 3 + [32] * 3


def turn(peer: str, texts: int, new_tokens: int, seconds: float) -> Turn:
    request: dict[str, Any] = {"streams": [[5, 6]] * texts, "new_tokens": new_tokens}
    return Turn(peer=peer, round=0, request=request, answer={"seconds": seconds})


def test_step_time_excludes_the_first_token() -> None:
    turns = [
        turn("ours", 1, 1, 1.0),
        turn("ours", 1, 11, 2.0),
        turn("ours", 4, 1, 4.0),
        turn("ours", 4, 11, 6.0),
        turn("other", 1, 1, 1.0),
        turn("other", 1, 11, 3.0),
        turn("other", 4, 1, 1.0),
        turn("other", 4, 11, 11.0),
    ]
    rows = streams.summarize(turns, new_tokens=11, prompt_tokens=2)
    assert [(row.streams, row.peer) for row in rows] == [
        *((1, "ours"), (1, "other")),
        *((4, "ours"), (4, "other")),
    ]
    assert [row.step_per_s for row in rows] == [10.0, 5.0, 20.0, 4.0]
    assert [row.prompt_per_s for row in rows] == [2.0, 2.0, 2.0, 8.0]
    assert [row.scaling for row in rows] == [1.0, 1.0, 2.0, 0.8]
    assert rows[3].times == "5.00 (5.00-5.00)"
