"""What holds for every model that transcribes, whatever way its sounds come."""

import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime import tiny_encoder
from tests.runtime.tiny_decoder import TinyDecoder
from tests.runtime.transcription.conftest import Saved
from tests.runtime.transcription.tiny_whisper import RATE, sound

import ortolan
from ortolan.export.options import PrecisionName
from ortolan.runtime import Seq2Seq, Transcript
from ortolan.runtime.verification.replay import verify

MODELS = ["whisper", *(pytest.param(n, marks=pytest.mark.slow) for n in ("moonshine", "wav2vec2"))]
SLOW_ONES = [*MODELS, pytest.param("qwen3-asr", marks=pytest.mark.slow)]

LONG = {"whisper": 4.0, "moonshine": 55.0, "wav2vec2": 31.0, "qwen3-asr": 6.5}
"""Seconds of more than one window, or part, of each model that has several."""


@pytest.fixture(scope="module")
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def model(name: str, speech: Callable[[str], Saved]) -> Any:
    return ortolan.load(speech(name)[0] / "bundle", threads=1)


def rows(transcript: Transcript) -> list[Any]:
    return [(own.start, own.end, own.text, own.tokens) for own in transcript.segments]


def sounds(name: str) -> list[Any]:
    return [sound(n, seed) for seed, n in enumerate((0.3, 2.2, LONG[name], 0.9))]


@pytest.mark.parametrize("name", SLOW_ONES, indirect=True)
def test_other_sounds_have_other_texts(model: Any) -> None:
    found = [model.transcribe(sound(2.0, seed)) for seed in range(4)]
    assert len({transcript.text for transcript in found}) == 4
    for transcript in found:
        assert transcript.seconds == 2
        assert all(-20 < segment.logprob < 0 for segment in transcript.segments)


@pytest.mark.parametrize("name", MODELS, indirect=True)
def test_sounds_of_a_list_are_transcribed_as_each_is_alone(model: Any, name: str) -> None:
    found = model.transcribe(sounds(name))
    assert [rows(own) for own in found] == [rows(model.transcribe(own)) for own in sounds(name)]
    assert model.transcribe([]) == []


@pytest.mark.parametrize("name", SLOW_ONES, indirect=True)
def test_a_service_transcribes_several_sounds_at_once(model: Any, name: str) -> None:
    with model.serve() as service, ThreadPoolExecutor(4) as threads:
        found = list(threads.map(service.transcribe, sounds(name)))
        assert refusal(lambda: service.transcribe(sound(1.0), rate=0))
        assert service.stats().finished >= 4
    assert [rows(own) for own in found] == [rows(model.transcribe(own)) for own in sounds(name)]


@pytest.mark.parametrize("name", SLOW_ONES, indirect=True)
def test_files_and_other_rates_are_read(model: Any, tmp_path: Path) -> None:
    wave, path = sound(1.7), tmp_path / "sound.wav"
    soundfile.write(path, wave, RATE, subtype="FLOAT")
    expected = model.transcribe(wave)
    for given in (path, str(path), path.read_bytes()):
        assert model.transcribe(given) == expected
    resampled = soxr.resample(wave, RATE, 44_100)
    back = model.transcribe(soxr.resample(resampled, 44_100, RATE))
    assert model.transcribe(resampled, rate=44_100) == back
    soundfile.write(path, np.stack([resampled, resampled], 1), 44_100, subtype="FLOAT")
    assert model.transcribe(path) == back


@pytest.mark.parametrize("name", SLOW_ONES, indirect=True)
def test_a_transcription_that_is_cancelled_at_once_is_empty(model: Any) -> None:
    event = threading.Event()
    event.set()
    for cancel in (event, lambda: True):
        nothing = Transcript(segments=(), seconds=1.0)
        assert model.transcribe(sound(1.0), cancel=cancel) == nothing


@pytest.mark.parametrize("name", MODELS, indirect=True)
def test_a_cancelled_transcription_keeps_what_it_has(model: Any, name: str) -> None:
    polls = count()

    def text(most: int) -> list[str]:
        """Words of the text if it is cancelled after so many questions."""
        nonlocal polls
        polls = count()
        transcript = model.transcribe(sound(LONG[name]), cancel=lambda: next(polls) > most)
        words: list[str] = transcript.text.split()
        return words

    whole = text(10_000)
    part = text((next(polls) - 1) * 3 // 4)
    assert 1 < len(part) < len(whole)
    assert part[:-1] == whole[: len(part) - 1]  # the last word may be cut


def wav(samples: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV")
    return file.getvalue()


REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "an unknown language": (sound(1.0), {"language": "xx"}),
    "a translation": (sound(1.0), {"translate": "yes"}),
    "times": (sound(1.0), {"timestamps": "no"}),
    "a pace": (sound(1.0), {"tokens_per_second": 1e9}),
    "no rate": (sound(1.0), {"rate": 0}),
    "no function": (sound(1.0), {"cancel": 3}),
    "an unknown option": (sound(1.0), {"beams": 4}),
    "no samples": (np.zeros(0, np.float32), {}),
    "not finite": (np.full(9000, np.nan, np.float32), {}),
    "a file that is cut": (wav(sound(2.0))[:-100], {}),
    "no file of a sound": (b"RIFF", {}),
}


@pytest.mark.parametrize("name", SLOW_ONES, indirect=True)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_transcribed_is_refused(
    model: Any, case: str, snapshot: SnapshotAssertion
) -> None:
    given, options = REFUSED[case]
    assert refusal(lambda: model.transcribe(given, **options)) == snapshot


@pytest.fixture
def other(
    request: pytest.FixtureRequest,
    tiny: TinyDecoder,
    exported: Callable[[str], Path],
    tmp_path: Path,
) -> Any:
    """A model that does not transcribe."""
    paths: dict[str, Callable[[], Path]] = {
        "decoder": lambda: tiny.path,
        "encoder": lambda: tiny_encoder.write_bundle(tmp_path / "bundle", kind="embedding").path,
        "translator": lambda: exported("marian") / "bundle",
    }
    return ortolan.load(paths[request.param]())


@pytest.mark.parametrize("other", ["decoder", "encoder", "translator"], indirect=True)
def test_other_models_do_not_transcribe(other: Any, snapshot: SnapshotAssertion) -> None:
    assert refusal(lambda: other.transcribe(sound(1.0))) == snapshot
    if isinstance(other, Seq2Seq):
        assert refusal(lambda: other.listen([sound(1.0)])) == snapshot


@pytest.mark.slow
@pytest.mark.parametrize("name", ["moonshine", "wav2vec2"])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_bundles_are_verified(
    name: str, precision: PrecisionName, speech: Callable[[str], Saved], tmp_path: Path
) -> None:
    ortolan.export(speech(name)[0] / "source", tmp_path / "bundle", precision=precision)
    report = verify(tmp_path / "bundle", isolate=False)
    assert report.verdict == "PASS"
    assert report.quality is not None
    assert (report.quality.mean_kl or 0) < 0.05
    model: Any = ortolan.load(tmp_path / "bundle")
    assert model.transcribe(sound(2.0)).text
