"""Segments: the order of times, subtitles, and the parts of a sound that a chat model hears."""

from threading import Event
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ortolan.runtime.bundle.manifest import Speech
from ortolan.runtime.bundle.parts import Dictation
from ortolan.runtime.bundle.sound_sources import ChunkedSource
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.transcription.dictation import LONGEST_S, dictate
from ortolan.runtime.transcription.timestamps import TimeRule, spans
from ortolan.runtime.transcription.transcript import Segment, Transcript

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


def test_subtitles() -> None:
    segments = [
        Segment(start=0.5, end=2.25, text="One & <two>.", tokens=(1,), logprob=-0.1),
        Segment(start=3.0, end=3.0, text="", tokens=(99,), logprob=-0.1),
        Segment(start=3725.9999, end=3727.0, text="Three.", tokens=(2,), logprob=-0.1),
    ]
    transcript = Transcript(segments=tuple(segments), seconds=3727.0, language="en")
    assert transcript.text == "One & <two>. Three."
    assert transcript.srt == (
        "1\n00:00:00,500 --> 00:00:02,250\nOne & <two>.\n\n"
        "2\n01:02:06,000 --> 01:02:07,000\nThree.\n"
    )
    assert transcript.vtt == (
        "WEBVTT\n\n00:00:00.500 --> 00:00:02.250\nOne &amp; &lt;two&gt;.\n\n"
        "01:02:06.000 --> 01:02:07.000\nThree.\n"
    )


@pytest.mark.parametrize(
    ("tokens", "expected", "moved"),
    [
        ([], [], 50),
        ([100], [(0, 50, 1)], 50),
        ([103, 1, 2], [(3, 50, 3)], 50),
        ([103, 1, 110], [(3, 10, 3)], 50),
        ([1, 2], [(0, 50, 2)], 50),
        ([103, 1, 110, 112], [(3, 10, 3)], 10),
        ([103, 1, 110, 112, 2], [(3, 10, 3)], 10),
        ([103, 1, 110, 110, 2, 120], [(3, 10, 3), (10, 20, 3)], 50),
        ([100, 1, 110, 111, 2, 120, 130], [(0, 10, 3), (11, 20, 3)], 20),
    ],
)
def test_pairs_of_times_split_the_text_of_a_window(
    tokens: list[int], expected: list[tuple[int, int, int]], moved: int
) -> None:
    found, end = spans(tokens, first_timestamp=100, length=50)
    sizes = [(span.start, span.end, span.part.stop - span.part.start) for span in found]
    assert (sizes, end) == (expected, moved)


RATE = 1000

SOURCE = ChunkedSource(rate=RATE, window=40, hop=10, bins=8, frames=300, chunk=100, stride=8)

DICTATION = Dictation(
    language="language ", text="<asr_text>", languages={"en": "English", "de": "German"}
)


NO_TIMINGS: Any = None


class Model:
    """Answers in turn, and remembers what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[NDArray[np.float32], str | None, int]] = []

    def __call__(self, samples: NDArray[np.float32], start: str | None, most: int) -> Completion:
        self.asked.append((samples, start, most))
        said = self.answers.pop(0)
        return Completion(text=said, tokens=(1, 2), finish_reason="stop", timings=NO_TIMINGS)


def transcribed(model: Model, samples: NDArray[np.float32], **options: Any) -> Any:
    return dictate(samples, SOURCE, DICTATION, model, options)  # type: ignore[arg-type]


def noise(seconds: float) -> NDArray[np.float32]:
    return np.random.default_rng(0).uniform(0.1, 0.9, round(seconds * RATE)).astype(np.float32)


@pytest.mark.parametrize(
    ("answer", "language", "text"),
    [
        ("language English<asr_text>Hello there. ", "en", "Hello there."),
        ("language German<asr_text>", "de", ""),
        ("language None<asr_text>", None, ""),
        ("language Klingon<asr_text>nuqneH", None, "nuqneH"),
        ("only words", None, "only words"),
        ("", None, ""),
    ],
)
def test_an_answer_names_the_language_and_the_words(
    answer: str, language: str | None, text: str
) -> None:
    transcript = transcribed(Model(answer), noise(2))
    assert (transcript.language, transcript.text) == (language, text)
    assert transcript.seconds == 2


def test_a_language_starts_the_answer() -> None:
    model = Model("Guten Tag.")
    transcript = transcribed(model, noise(2), language="de")
    assert model.asked[0][1] == "language German<asr_text>"
    assert (transcript.language, transcript.text) == ("de", "Guten Tag.")
    assert model.asked[0][2] == 2 * 12 + 32


def test_a_long_sound_is_cut_where_it_is_quiet() -> None:
    samples = noise(2 * LONGEST_S)
    quiet = (LONGEST_S - 6) * RATE
    samples[quiet : quiet + 200] = 0
    model = Model(*(f"language English<asr_text>part {number}" for number in range(3)))
    transcript = transcribed(model, samples)
    sizes = [len(part) for part, _, _ in model.asked]
    assert quiet <= sizes[0] <= quiet + 200
    assert max(sizes) <= LONGEST_S * RATE
    np.testing.assert_array_equal(np.concatenate([part for part, _, _ in model.asked]), samples)
    assert transcript.text == "part 0 part 1 part 2"
    assert [segment.start for segment in transcript.segments[1:]] == [
        segment.end for segment in transcript.segments[:-1]
    ]
    assert transcript.segments[-1].end == pytest.approx(2 * LONGEST_S)


def test_cancelling_keeps_what_was_transcribed() -> None:
    stop = Event()

    class Stopping(Model):
        def __call__(self, *asked: Any) -> Completion:
            stop.set()
            return super().__call__(*asked)

    transcript = transcribed(Stopping("a", "b"), noise(1.5 * LONGEST_S), cancel=stop)
    assert transcript.text == "a"
