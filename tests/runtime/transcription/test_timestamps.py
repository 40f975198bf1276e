"""The order of times in the text of a window, token by token."""

import numpy as np
import pytest

from ortolan.runtime.bundle.manifest import Speech
from ortolan.runtime.transcription.timestamps import TimeRule

END, NO_TIMES, FIRST = 4, 5, 6
"""Text has the ids 0 to 3; five times follow the token for none."""

SPEECH = Speech(languages={}, tasks={}, no_timestamps=NO_TIMES, first_timestamp=FIRST)

TEXT, TIMES = [0, 1, 2, 3], [6, 7, 8, 9, 10]


def allowed(tokens: list[int], logits: list[float] | None = None) -> list[int]:
    """The ids that may follow, of which text is more probable by default."""
    values = np.array(logits or [9.0] * FIRST + [0.0] * len(TIMES), np.float32)
    TimeRule(SPEECH, END)(values, tokens)
    return np.isfinite(values).nonzero()[0].tolist()


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], TIMES),
        ([7], [*TEXT, END]),
        ([7, 1], [*TEXT, END, 8, 9, 10]),
        ([7, 1, 8], [END, 8, 9, 10]),
        ([7, 1, 8, 8], [*TEXT, END]),
        ([7, 1, 8, 8, 2], [*TEXT, END, 9, 10]),
    ],
)
def test_times_come_in_pairs_and_never_go_back(tokens: list[int], expected: list[int]) -> None:
    assert allowed(tokens) == expected


def test_times_that_are_together_more_probable_than_any_word_win() -> None:
    words, times = [1.0] * FIRST, [0.0] * len(TIMES)
    assert allowed([6, 1], [*words, *times]) == [7, 8, 9, 10]  # log(4 * e^0) > 1
    assert allowed([6, 1], [*[1.5] * FIRST, *times]) == [*TEXT, END, 7, 8, 9, 10]


def test_a_window_begins_no_later_than_the_model_learned() -> None:
    values = np.zeros(11, np.float32)
    speech = Speech(
        languages={}, tasks={}, no_timestamps=NO_TIMES, first_timestamp=FIRST, latest_start=1
    )
    TimeRule(speech, END)(values, [])
    assert np.isfinite(values).nonzero()[0].tolist() == [6, 7]
