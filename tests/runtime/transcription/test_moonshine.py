"""Transcriptions by an encoder-decoder of waves: against transformers, and their parts."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.damaged_bundles import edit_json, put
from tests.runtime.transcription.conftest import Saved
from tests.runtime.transcription.tiny_moonshine import HOP, WINDOW, greedy
from tests.runtime.transcription.tiny_whisper import RATE, sound

import ortolan
from ortolan.runtime.seq2seq import Seq2Seq
from ortolan.runtime.verification.replay import verify

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(speech: Callable[[str], Saved]) -> Path:
    return speech("moonshine")[0]


@pytest.fixture(scope="module")
def reference(speech: Callable[[str], Saved]) -> Any:
    return speech("moonshine")[1]


@pytest.fixture(scope="module")
def model(folder: Path) -> Seq2Seq:
    return ortolan.load(folder / "bundle", Seq2Seq, threads=1)


def test_logits_are_those_of_transformers(reference: Any, model: Seq2Seq) -> None:
    ids = [1, 5, 70, 31]
    for samples in (WINDOW, WINDOW + HOP - 1, WINDOW + HOP, 16_001, 50_003):
        wave = sound(samples / RATE + 0.01)[:samples]
        with torch.inference_mode():
            expected = reference(
                input_values=torch.from_numpy(wave[None]), decoder_input_ids=torch.tensor([ids])
            ).logits[0]
        found = torch.from_numpy(model.logits(wave, ids))
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("seconds", [0.1, 1.0, 2.773, 9.1])
def test_tokens_are_those_of_transformers(reference: Any, model: Seq2Seq, seconds: float) -> None:
    samples = sound(seconds, seed=int(10 * seconds))
    transcript = model.transcribe(samples)
    assert transcript.seconds == len(samples) / RATE
    assert transcript.language is None
    (segment,) = transcript.segments
    assert list(segment.tokens) == greedy(reference, samples)
    assert segment.start == 0
    assert segment.end == pytest.approx(seconds, abs=1e-4)
    assert segment.text == " ".join(f"w{token}" for token in segment.tokens if token > 2)
    assert segment.logprob < 0


def test_a_long_sound_is_cut_at_quiet_places(reference: Any, model: Seq2Seq) -> None:
    samples = sound(60.0, seed=3)
    pauses = (slice(int(28.5 * RATE), int(28.7 * RATE)), slice(int(56.4 * RATE), int(56.6 * RATE)))
    for pause in pauses:
        samples[pause] = 0
    first, second, last = model.transcribe(samples).segments
    assert 28.5 < first.end < 28.7
    assert 56.4 < second.end < 56.6
    assert (first.start, second.start, last.start) == (0, first.end, second.end)
    assert last.end == pytest.approx(60.0)
    assert list(last.tokens) == greedy(reference, samples[round(second.end * RATE) :])


def test_a_sound_that_is_recorded_is_transcribed_like_a_whole_one(model: Seq2Seq) -> None:
    samples = sound(42.0, seed=8)
    heard = model.listen(np.array_split(samples, 50))
    assert tuple(heard) == model.transcribe(samples).segments


def test_every_part_is_long_enough(model: Seq2Seq) -> None:
    samples = sound(30.01, seed=2)
    samples[round(29.98 * RATE) : 30 * RATE] = 0  # a cut here would leave almost nothing
    first, last = model.transcribe(samples, tokens_per_second=0.5).segments
    assert last.end - last.start > WINDOW / RATE
    assert first.end == last.start


def test_the_number_of_tokens_is_bounded_by_the_length_of_a_sound(model: Seq2Seq) -> None:
    samples = sound(9.1, seed=91)
    whole = model.transcribe(samples).segments[0].tokens
    (segment,) = model.transcribe(samples, tokens_per_second=0.5).segments
    assert segment.tokens == whole[:5]
    more = model.transcribe(samples, tokens_per_second=13.0).segments
    assert len(more) == 1
    assert more[0].tokens[: len(whole)] == whole
    parts = model.transcribe(sound(20.0), tokens_per_second=20.0).segments
    assert len(parts) > 1, "a part whose text does not fit"


REFUSED: dict[str, Callable[[Any], object]] = {
    "shorter than a vector": lambda model: model.transcribe(sound(0.05)),
    "longer than the encoder reads": lambda model: model.generate(sound(31.0)),
    "a translation": lambda model: model.transcribe(sound(1.0), translate=True),
    "no pace": lambda model: model.transcribe(sound(1.0), tokens_per_second=0),
    "a pace in words": lambda model: model.transcribe(sound(1.0), tokens_per_second="6"),
    "a pace that is no number": lambda model: model.transcribe(
        sound(1.0), tokens_per_second=float("nan")
    ),
    "a pace beyond the context": lambda model: model.transcribe(sound(1.0), tokens_per_second=1000),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_model_does_not_know_is_refused(
    name: str, model: Seq2Seq, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: REFUSED[name](model)) == snapshot


def test_times_are_given_even_if_none_are_asked_for(model: Seq2Seq) -> None:
    assert model.transcribe(sound(1.0), timestamps=False) == model.transcribe(sound(1.0))


@pytest.mark.parametrize(
    ("file", "edit"),
    [
        ("certificate.json", put("probes", 0, "source", value=1251)),
        ("certificate.json", put("probes", 0, "source", value=None)),
        ("manifest.json", put("source", "vectors", value=1)),
    ],
    ids=["a longer sound", "no length", "one vector"],
)
def test_a_bundle_that_says_something_else_of_its_sounds_is_refused(
    folder: Path, file: str, edit: Any, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    copy = shutil.copytree(folder / "bundle", tmp_path / "bundle")
    edit_json(copy, file, edit)
    assert refusal(lambda: verify(copy, isolate=False), tmp_path) == snapshot
