"""Transcriptions by an encoder-decoder of waves: against transformers, and in every way."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from tests.runtime.transcription.tiny_moonshine import HOP, WINDOW, greedy, write_moonshine
from tests.runtime.transcription.tiny_whisper import RATE, sound

import ortolan
from ortolan.runtime.bundle.sources import WaveSource
from ortolan.runtime.errors import BundleError, CertificateError, ContextLengthError, InputError
from ortolan.runtime.seq2seq import Seq2Seq
from ortolan.runtime.transcription.quiet import quiet_cut
from ortolan.runtime.transcription.recording import WaveParts
from ortolan.runtime.verification.certificate_files import decode_certificate
from ortolan.runtime.verification.replay import verify

pytestmark = pytest.mark.slow

QUICK = ortolan.ExportOptions(proof="quick")

Saved = tuple[Path, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("moonshine")
    reference = write_moonshine(folder / "source")
    ortolan.export(folder / "source", folder / "bundle", options=QUICK)
    return folder, reference


@pytest.fixture(scope="module")
def model(saved: Saved) -> Seq2Seq:
    return ortolan.load(saved[0] / "bundle", Seq2Seq, threads=1)


def test_logits_are_those_of_transformers(saved: Saved, model: Seq2Seq) -> None:
    ids = [1, 5, 70, 31]
    for samples in (WINDOW, WINDOW + HOP - 1, WINDOW + HOP, 16_001, 50_003):
        wave = sound(samples / RATE + 0.01)[:samples]
        with torch.inference_mode():
            expected = saved[1](
                input_values=torch.from_numpy(wave[None]), decoder_input_ids=torch.tensor([ids])
            ).logits[0]
        found = torch.from_numpy(model.logits(wave, ids))
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("seconds", [0.1, 1.0, 2.773, 9.1])
def test_tokens_are_those_of_transformers(saved: Saved, model: Seq2Seq, seconds: float) -> None:
    samples = sound(seconds, seed=int(10 * seconds))
    transcript = model.transcribe(samples)
    assert transcript.seconds == len(samples) / RATE
    assert transcript.language is None
    (segment,) = transcript.segments
    assert list(segment.tokens) == greedy(saved[1], samples)
    assert segment.start == 0
    assert segment.end == pytest.approx(seconds, abs=1e-4)
    assert segment.text == " ".join(f"w{token}" for token in segment.tokens if token > 2)
    assert segment.logprob < 0


def test_the_tests_see_the_sound(model: Seq2Seq) -> None:
    found = {model.transcribe(sound(3.0, seed=seed)).text for seed in range(4)}
    assert len(found) == 4


def test_sounds_of_a_list_are_transcribed_as_each_is_alone(model: Seq2Seq) -> None:
    sounds = [sound(seconds, seed=number) for number, seconds in enumerate((0.3, 4.2, 3.1, 31.0))]
    assert [own.text for own in model.transcribe(sounds)] == [
        model.transcribe(own).text for own in sounds
    ]
    texts = [done.text for done in model.generate(sounds[:3], max_new_tokens=9)]
    assert texts == [model.generate(own, max_new_tokens=9).text for own in sounds[:3]]


def test_requests_of_a_service_equal_those_alone(model: Seq2Seq) -> None:
    sounds = [sound(seconds, seed=number) for number, seconds in enumerate((2.0, 0.7, 31.0, 1.4))]
    with model.serve(slots=2) as service, ThreadPoolExecutor(4) as threads:
        tickets = [service.submit(own, max_new_tokens=9) for own in sounds[:2]]
        found = list(threads.map(service.transcribe, sounds))
        texts = [ticket.completion().text for ticket in tickets]
    assert [own.text for own in found] == [model.transcribe(own).text for own in sounds]
    assert texts == [model.generate(own, max_new_tokens=9).text for own in sounds[:2]]


def test_a_long_sound_is_cut_at_quiet_places(saved: Saved, model: Seq2Seq) -> None:
    samples = sound(60.0, seed=3)
    pauses = (slice(int(28.5 * RATE), int(28.7 * RATE)), slice(int(56.4 * RATE), int(56.6 * RATE)))
    for pause in pauses:
        samples[pause] = 0
    first, second, last = model.transcribe(samples).segments
    assert 28.5 < first.end < 28.7
    assert 56.4 < second.end < 56.6
    assert (first.start, second.start, last.start) == (0, first.end, second.end)
    assert last.end == pytest.approx(60.0)
    assert list(last.tokens) == greedy(saved[1], samples[round(second.end * RATE) :])


def test_a_sound_that_is_recorded_is_transcribed_like_a_whole_one(model: Seq2Seq) -> None:
    samples = sound(42.0, seed=8)
    heard = model.listen(np.array_split(samples, 50))
    assert tuple(heard) == model.transcribe(samples).segments


@pytest.mark.parametrize("samples", [8000, 8001, 8010, 8999, 24_000])
def test_every_part_is_long_enough(samples: int) -> None:
    rest = np.random.default_rng(0).uniform(0.1, 1, samples).astype(np.float32)
    rest[7980:8000] = 0  # would leave almost nothing
    while len(rest):
        end = quiet_cut(rest, rate=1000, longest=8000, shortest=900)
        assert 0 < end <= 8000
        rest = rest[end:]
        assert not 0 < len(rest) < 900


def test_what_the_model_does_not_know_is_refused(model: Seq2Seq) -> None:
    with pytest.raises(InputError, match="the model knows one language"):
        model.transcribe(sound(1.0), language="de")
    with pytest.raises(InputError, match="not trained to translate"):
        model.transcribe(sound(1.0), translate=True)
    with pytest.raises(InputError, match=f"at least {WINDOW} samples"):
        model.transcribe(sound(0.05))
    with pytest.raises(ContextLengthError, match=r"at most 30 seconds \(got 31\.00\)"):
        model.generate(sound(31.0))
    assert model.transcribe(sound(1.0), timestamps=False) == model.transcribe(sound(1.0))
    source = model.manifest.source
    assert isinstance(source, WaveSource)
    with pytest.raises(ContextLengthError, match="larger --max-context"):
        WaveParts(source, context_length=3)


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
    for value in (0, -1, "6", 1e9, float("nan")):
        with pytest.raises(InputError, match="tokens_per_second must be"):
            model.transcribe(samples, tokens_per_second=value)  # type: ignore[arg-type]


def test_a_cancelled_transcription_keeps_what_was_heard(model: Seq2Seq) -> None:
    assert model.transcribe(sound(2.0), cancel=lambda: True).segments == ()


def test_bundles_are_verified(saved: Saved) -> None:
    folder, _ = saved
    assert verify(folder / "bundle", isolate=False).verdict == "PASS"
    ortolan.export(folder / "source", folder / "int8", precision="int8", options=QUICK)
    assert verify(folder / "int8", isolate=False).verdict == "PASS"
    assert ortolan.load(folder / "int8", Seq2Seq).transcribe(sound(2.0)).segments


@pytest.mark.parametrize(
    ("source", "message"),
    [(1251, "waves of at most 1250 vectors"), (None, "a source length for each probe")],
)
def test_a_certificate_of_other_sounds_is_refused(
    saved: Saved, model: Seq2Seq, source: int | None, message: str
) -> None:
    document = json.loads((saved[0] / "bundle" / "certificate.json").read_text())
    document["probes"][0]["source"] = source
    with pytest.raises(CertificateError, match=message):
        decode_certificate(json.dumps(document).encode(), lambda: b"", model.manifest)


def test_damaged_files_and_manifests_are_refused(
    saved: Saved, model: Seq2Seq, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "sound.wav", sound(2.0), RATE)
    (tmp_path / "cut.wav").write_bytes((tmp_path / "sound.wav").read_bytes()[:-100])
    with pytest.raises(InputError, match="cut off"):
        model.transcribe(tmp_path / "cut.wav")
    with pytest.raises(InputError, match="finite"):
        model.transcribe(np.full(9000, np.nan, np.float32))
    for file in (saved[0] / "bundle").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["source"]["vectors"] = 1
    path.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="and of one at least"):
        ortolan.load(tmp_path, Seq2Seq)
