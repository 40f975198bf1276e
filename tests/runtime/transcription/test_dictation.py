"""Transcription by a chat model: parts of a sound, and what an answer says."""

from threading import Event
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ortolan.runtime.bundle.parts import Dictation
from ortolan.runtime.bundle.sources import ChunkedSource
from ortolan.runtime.generation.completion import Completion, Timings
from ortolan.runtime.transcription.dictation import LONGEST_S, dictate

RATE = 1000

SOURCE = ChunkedSource(rate=RATE, window=40, hop=10, bins=8, frames=300, chunk=100, stride=8)

DICTATION = Dictation(
    language="language ", text="<asr_text>", languages={"en": "English", "de": "German"}
)


def completion(text: str) -> Completion:
    timings = Timings(
        prompt_tokens=1,
        new_tokens=1,
        prefill_s=0.0,
        decode_s=0.0,
        time_to_first_token_s=0.0,
        tokens_per_second=0.0,
        prefill_tokens_per_second=0.0,
    )
    return Completion(text=text, tokens=(1, 2), finish_reason="stop", timings=timings)


class Model:
    """Answers in turn, and remembers what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[NDArray[np.float32], str | None, int]] = []

    def __call__(self, samples: NDArray[np.float32], start: str | None, most: int) -> Completion:
        self.asked.append((samples, start, most))
        return completion(self.answers.pop(0))


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
