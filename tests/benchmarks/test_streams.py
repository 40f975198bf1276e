from typing import Any

import streams
from rounds import Turn


def turn(peer: str, texts: int, new_tokens: int, seconds: float, tokens: list[int]) -> Turn:
    request: dict[str, Any] = {"streams": [[5, 6]] * texts, "new_tokens": new_tokens}
    answer = {"seconds": seconds, "tokens": [tokens] * texts}
    return Turn(peer=peer, round=0, request=request, answer=answer)


def test_step_time_excludes_the_first_token() -> None:
    turns = [
        turn("ours", 1, 1, 1.0, [7]),
        turn("ours", 1, 11, 2.0, [7] * 11),
        turn("ours", 4, 1, 4.0, [7]),
        turn("ours", 4, 11, 6.0, [7] * 3 + [8] * 8),
        turn("other", 1, 1, 1.0, [7]),
        turn("other", 1, 11, 3.0, [7] * 11),
        turn("other", 4, 1, 1.0, [7]),
        turn("other", 4, 11, 11.0, [7] * 11),
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
