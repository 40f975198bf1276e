"""Transcriptions in JavaScript against Python: spectrograms, tokens, segments and errors."""

from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import soundfile
import soxr
from numpy.typing import NDArray
from tests.hosts.js_cases import Calls
from tests.hosts.js_runs import run_tests
from tests.runtime.transcription.tiny_moonshine import write_moonshine
from tests.runtime.transcription.tiny_wav2vec2 import write_wav2vec2
from tests.runtime.transcription.tiny_whisper import RATE, sound, write_whisper

import ortolan
from ortolan.runtime import Sampling
from ortolan.runtime.bundle.sound_sources import AudioSource
from ortolan.runtime.inputs.audio import log_mel, read_samples

pytestmark = pytest.mark.slow

MODELS = Path(__file__).parents[2] / "models"

REFUSED: list[tuple[Any, dict[str, Any]]] = [
    (sound(1.0), {"language": "xx"}),
    (sound(1.0), {"translate": "yes"}),
    (sound(1.0), {"timestamps": "no"}),
    (sound(1.0), {"tokens_per_second": 1e9}),
    (sound(1.0), {"rate": 0}),
    (sound(1.0), {"beams": 4}),
    (np.zeros(0, np.float32), {}),
    (np.full(9000, np.nan, np.float32), {}),
    (np.full(9000, 1000.0, np.float32), {}),
    (sound(0.01)[:3], {"rate": 384_000}),
]


def exported(write: Callable[..., Any], folder: Path, **options: Any) -> Path:
    write(folder / "source")
    own = ortolan.ExportOptions(witness=False, proof="quick")
    bundle = folder / "bundle"
    ortolan.export(folder / "source", bundle, device="web", options=own, **options)
    return bundle


def calls_of(bundle: Path, seconds: tuple[float, ...]) -> Calls:
    calls = Calls(bundle, device="cpu")
    for seed, length in enumerate(seconds):
        calls.add("transcribe", sound(length, seed))
    calls.add("transcribe", [sound(0.7), sound(1.9, seed=4)])
    calls.add("transcribe", (sound(1.3) * 32767).astype(np.int16))
    calls.add("transcribe", sound(1.3).astype(np.float64))
    for given, options in REFUSED:
        calls.add("transcribe", given, **options)
    return calls


def of_whisper(folder: Path) -> list[Calls]:
    bundle = exported(write_whisper, folder)
    calls = calls_of(bundle, (0.004, 0.3, 1.0, 2.2, 4.0))
    for options in (
        {"language": "de"},
        {"translate": True},
        {"language": "en", "translate": True},
        {"timestamps": False},
        {"sampling": Sampling(temperature=1.0, top_k=9, seed=7)},
    ):
        calls.add("transcribe", sound(0.9, seed=3), **options)
    calls.add("transcribe", sound(1.9), timestamps=False)
    calls.add("transcribe", sound(1.0), tokens_per_second=5.0)
    calls.add("listen", np.array_split(sound(3.3, seed=6), 17))
    calls.add("listen", [sound(1.0)], beams=2)
    calls.add("generate", sound(0.8), max_new_tokens=9)
    calls.add("generate", sound(0.8), max_new_tokens=9, beams=3, first="<|de|>")
    calls.add("generate", sound(1.2))
    return [calls]


def of_moonshine(folder: Path) -> list[Calls]:
    calls = calls_of(exported(write_moonshine, folder), (0.02, 0.1, 2.773, 55.0))
    quiet = sound(31.0, seed=3)
    quiet[int(28.5 * RATE) : int(28.7 * RATE)] = 0
    calls.add("transcribe", quiet)
    for pace in (0.5, 13.0, 0, 1000.0):
        calls.add("transcribe", sound(9.1, seed=5), tokens_per_second=pace)
    calls.add("transcribe", sound(20.0), tokens_per_second=20.0)
    calls.add("transcribe", sound(1.0), language="en")
    calls.add("transcribe", sound(1.0), timestamps=False)
    calls.add("listen", np.array_split(sound(42.0, seed=8), 50))
    calls.add("generate", sound(31.0))
    return [calls]


def of_wav2vec2(folder: Path) -> list[Calls]:
    calls = calls_of(exported(write_wav2vec2, folder / "whole"), (0.01, 0.5, 2.0))
    silent = np.zeros(2 * RATE, np.float32)
    calls.add("transcribe", np.concatenate([sound(1.0), silent, sound(1.0, seed=1)]))
    calls.add("logits", [sound(0.3), sound(0.4)])
    calls.add("logits", sound(31.0))
    calls.add("embed", sound(0.5))
    short = Calls(exported(write_wav2vec2, folder / "short", max_context=60), device="cpu")
    for seconds in (0.6, 0.61, 0.8, 1.405, 3.3):
        short.add("transcribe", sound(seconds))
    tiny = Calls(exported(write_wav2vec2, folder / "tiny", max_context=10), device="cpu")
    tiny.add("transcribe", sound(0.1))
    tiny.add("transcribe", sound(0.2))
    return [calls, short, tiny]


@pytest.mark.parametrize("calls_of_kind", [of_whisper, of_moonshine, of_wav2vec2])
def test_transcriptions_equal_those_of_python(
    calls_of_kind: Callable[[Path], list[Calls]], tmp_path: Path
) -> None:
    cases = [case for calls in calls_of_kind(tmp_path) for case in calls.cases]
    assert sum("result" in case for case in cases) > 9
    run_tests("calls", {"cases": cases, "tolerance": 1e-4}, tmp_path)


def test_a_trained_model_writes_the_same_segments(tmp_path: Path) -> None:
    options = ortolan.ExportOptions(witness=False, proof="quick")
    ortolan.export(MODELS / "spoken", tmp_path / "spoken", device="web", options=options)
    samples, rate = soundfile.read(MODELS / "spoken" / "talk.flac", dtype="float32")
    calls = Calls(tmp_path / "spoken", device="cpu")
    calls.add("transcribe", samples, rate=rate)
    calls.add("transcribe", soxr.resample(samples, rate, 44_100), rate=44_100)
    calls.add("listen", np.array_split(soxr.resample(samples, rate, 48_000), 90), rate=48_000)
    texts = {len(case["result"]) and str(case["result"])[:20] for case in calls.cases}
    assert texts
    run_tests("calls", {"cases": calls.cases, "tolerance": 1e-2}, tmp_path)


SOURCES = [
    AudioSource(rate=16_000, window=400, hop=160, bins=80, frames=3000, vectors=1500),
    AudioSource(rate=16_000, window=400, hop=160, bins=128, frames=300, vectors=150),
    AudioSource(rate=22_050, window=1024, hop=256, bins=40, frames=30, vectors=15, highest=900.0),
    AudioSource(rate=8_000, window=154, hop=77, bins=23, frames=30, vectors=15, highest=4000.0),
]


def encoded(values: NDArray[np.float32]) -> str:
    return b64encode(values.astype(np.float32).tobytes()).decode()


def test_spectrograms_and_resampled_sounds_equal_those_of_python(tmp_path: Path) -> None:
    mels, rates = [], []
    for source in SOURCES:
        for seconds in (0.011, 0.5, 3.0):
            samples = sound(seconds)
            values = log_mel(samples, source, least=source.frames * source.hop // 2)
            own = msgspec.to_builtins(source)
            mels.append({"source": own, "samples": encoded(samples), "values": encoded(values)})
    for rate in (8000, 11_025, 22_050, 44_100, 47_999, 48_000, 192_000):
        samples = sound(0.1 * rate / RATE, seed=rate)
        values = read_samples(samples, SOURCES[0], rate=rate)
        rates.append({"rate": rate, "samples": encoded(samples), "values": encoded(values)})
    run_tests("sounds", {"mels": mels, "rates": rates}, tmp_path)
