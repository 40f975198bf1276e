"""Transcriptions with CTC against transformers, and in every way that we offer."""

import threading
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
import torch
from numpy.typing import NDArray
from tests.modeling.families.test_wave_parity import case
from tests.modeling.tiny_encoders import reference_output
from tests.runtime.transcription.tiny_wav2vec2 import (
    HOP,
    SYMBOLS,
    WINDOW,
    heard,
    logits_of,
    tokenizer,
    write_wav2vec2,
)
from tests.runtime.transcription.tiny_whisper import RATE, sound
from tests.tiny.numbers import assert_close
from transformers import (
    AutomaticSpeechRecognitionPipeline,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
)

import ortolan
from ortolan.export.options import PrecisionName
from ortolan.export.preview.preview import preview
from ortolan.runtime import Encoder, Transcript
from ortolan.runtime.bundle.sources import WaveSource
from ortolan.runtime.errors import (
    BundleKindError,
    ContextLengthError,
    InputError,
    NumericError,
    TokenizerError,
)
from ortolan.runtime.transcription.ctc import PAUSE_S, windows
from ortolan.runtime.verification.replay import verify

pytestmark = pytest.mark.slow

VECTORS = 60
"""Vectors of the longest window here: 0.6 seconds."""

Saved = tuple[Path, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("wav2vec2")
    reference = write_wav2vec2(folder / "source")
    ortolan.export(folder / "source", folder / "bundle")
    ortolan.export(folder / "source", folder / "short", max_context=VECTORS)
    return folder, reference


@pytest.fixture(scope="module")
def model(saved: Saved) -> Encoder:
    """Reads sounds of 15 seconds."""
    return ortolan.load(saved[0] / "bundle", Encoder, threads=1)


@pytest.fixture(scope="module")
def short(saved: Saved) -> Encoder:
    """Reads sounds of 0.6 seconds."""
    return ortolan.load(saved[0] / "short", Encoder, threads=1)


def spaced(text: str) -> str:
    """With single spaces, as our texts are."""
    return " ".join(text.split())


def reading(folder: Path, logits: NDArray[np.float32]) -> tuple[str, list[tuple[Any, ...]]]:
    """The text of logits, and its words with their times, as transformers decodes them."""
    decoded = tokenizer(folder / "source").decode(logits.argmax(-1), output_word_offsets=True)
    step = HOP / RATE
    words = [
        (own["word"], own["start_offset"] * step, own["end_offset"] * step)
        for own in decoded.word_offsets
    ]
    return spaced(decoded.text), words


def words(transcript: Transcript) -> list[tuple[Any, ...]]:
    return [
        (word.text, pytest.approx(word.start), pytest.approx(word.end))
        for segment in transcript.segments
        for word in segment.words
    ]


@pytest.mark.parametrize("samples", [WINDOW, WINDOW + 1, 505, 506, 12_345, 44_101])
def test_logits_and_text_equal_those_of_transformers(
    saved: Saved, model: Encoder, samples: int
) -> None:
    folder, reference = saved
    waves = sound(samples / RATE + 0.1)[:samples]
    expected = logits_of(reference, waves)
    assert_close(model.logits(waves)[0], expected)
    transcript = model.transcribe(waves)
    assert (transcript.text, words(transcript)) == reading(folder, expected)
    assert transcript.seconds == samples / RATE
    assert transcript.language is None


@pytest.mark.parametrize(
    ("model_type", "norm", "stable"),
    list(product(("wav2vec2", "hubert"), ("group", "layer"), (False, True))),
)
def test_every_variant_gives_the_logits_of_transformers(
    tmp_path: Path, model_type: str, norm: str, stable: bool
) -> None:
    values: dict[str, Any] = {
        "feat_extract_norm": norm,
        "do_stable_layer_norm": stable,
        "conv_bias": not stable,
    }
    reference = case(model_type, **values).write(tmp_path / "source")
    ortolan.export(tmp_path / "source", tmp_path / "bundle")
    loaded = ortolan.load(tmp_path / "bundle", Encoder, threads=1)
    for samples in (21, 1237, 7001):
        waves = sound(0.6)[:samples]
        assert_close(loaded.logits(waves)[0], logits_of(reference, waves))
    with pytest.raises(TokenizerError, match=r"no vocab\.json"):
        loaded.transcribe(waves)


def test_the_tests_see_many_symbols_and_words(model: Encoder) -> None:
    transcript = model.transcribe(sound(2.0))
    assert len(transcript.segments[0].words) > 5
    tokens = {token for segment in transcript.segments for token in segment.tokens}
    assert len(tokens) > 5
    assert not {SYMBOLS.index("<pad>"), SYMBOLS.index("|")} & tokens
    assert all(-10 < segment.logprob < 0 for segment in transcript.segments)


@pytest.mark.parametrize("seconds", [0.6, 0.61, 0.8, 1.0, 1.405, 3.3])
def test_a_long_sound_is_read_as_by_the_pipeline_of_transformers(
    saved: Saved, short: Encoder, seconds: float
) -> None:
    folder, reference = saved
    waves = sound(seconds)
    own = tokenizer(folder / "source")
    kind: Any = Wav2Vec2FeatureExtractor
    pipeline: Any = AutomaticSpeechRecognitionPipeline
    run = pipeline(reference, tokenizer=own, feature_extractor=kind(), device="cpu")
    expected = run(waves.copy(), chunk_length_s=VECTORS * HOP / RATE, return_timestamps="word")
    transcript = short.transcribe(waves)
    assert transcript.text == spaced(expected["text"])
    assert words(transcript) == [
        (chunk["text"], *chunk["timestamp"]) for chunk in expected["chunks"]
    ]


@pytest.mark.parametrize("samples", [9600, 9601, 12_000, 16_000, 100_003])
def test_windows_cover_every_vector_once(samples: int) -> None:
    source = WaveSource(rate=RATE, window=WINDOW, hop=HOP, vectors=VECTORS, normalized=True)
    counted: list[int] = []
    for window in windows(samples, source):
        start, stop, _ = window.samples.indices(samples)
        assert stop - start <= source.samples
        vectors = range(source.length(stop - start))[window.vectors]
        counted += [start // HOP + vector for vector in vectors]
    assert counted == list(range(source.length(samples)))


def test_a_sound_that_fits_is_read_whole(model: Encoder, short: Encoder) -> None:
    waves = sound(0.6)
    assert short.transcribe(waves) == model.transcribe(waves)


def test_words_and_segments_follow_each_other(model: Encoder) -> None:
    silent = np.zeros(2 * RATE, np.float32)
    transcript = model.transcribe(np.concatenate([sound(1.0), silent, sound(1.0, seed=1)]))
    for one, other in pairwise(transcript.segments):
        assert other.start - one.end >= PAUSE_S
    for segment in transcript.segments:
        assert (segment.start, segment.end) == (segment.words[0].start, segment.words[-1].end)
        assert segment.text == " ".join(word.text for word in segment.words)
        for before, after in pairwise(segment.words):
            assert before.start < before.end <= after.start < before.end + PAUSE_S


def test_files_rates_and_lists_are_read(model: Encoder, tmp_path: Path) -> None:
    waves, path = sound(1.3), tmp_path / "sound.wav"
    soundfile.write(path, waves, RATE, subtype="FLOAT")
    expected = model.transcribe(waves)
    assert model.transcribe(path) == model.transcribe(path.read_bytes()) == expected
    resampled = soxr.resample(waves, RATE, 44_100)
    back = soxr.resample(resampled, 44_100, RATE)
    assert model.transcribe(resampled, rate=44_100) == model.transcribe(back)
    soundfile.write(path, np.stack([resampled, resampled], 1), 44_100, subtype="FLOAT")
    assert model.transcribe([path, waves]) == [model.transcribe(back), expected]
    assert model.transcribe([]) == []


def test_a_list_is_computed_one_by_one(model: Encoder) -> None:
    sounds = [sound(seconds) for seconds in (0.5, 1.3, 0.5)]
    for own, row in zip(sounds, model.logits(sounds), strict=True):
        np.testing.assert_array_equal(row, model.logits(own)[0])
    with model.serve() as service:
        for own, row in zip(sounds, service.logits(sounds).result(), strict=True):
            np.testing.assert_array_equal(row, model.logits(own)[0])


def test_a_cancelled_transcription_keeps_what_it_has(short: Encoder) -> None:
    polls = iter(range(100))
    whole = short.transcribe(sound(3.0))
    part = short.transcribe(sound(3.0), cancel=lambda: next(polls) > 2)
    first, last = part.segments[0], whole.segments[-1]
    assert 0 < first.end < last.end
    event = threading.Event()
    event.set()
    assert short.transcribe(sound(1.0), cancel=event) == Transcript(segments=(), seconds=1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "de"}, "there is no 'language'"),
        ({"translate": True}, "there is no 'translate'"),
        ({"rate": 0}, "0 samples per second"),
        ({"cancel": 3}, "cancel must be a function"),
    ],
)
def test_wrong_options_are_rejected(model: Encoder, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model.transcribe(sound(1.0), **options)


def test_wrong_sounds_are_rejected(model: Encoder, short: Encoder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 346 samples"):
        model.transcribe(sound(1.0)[: WINDOW - 1])
    with pytest.raises(InputError, match="no samples"):
        model.transcribe(np.zeros(0, np.float32))
    with pytest.raises(InputError, match="finite"):
        model.transcribe(np.full(4000, np.nan, np.float32))
    with pytest.raises(ContextLengthError, match=r"at most 0\.6 seconds \(got 1\.00\)"):
        short.logits(sound(1.0))
    mixed: Any = [sound(1.0), "absent.wav"]
    with pytest.raises(InputError, match="input 1: "):
        model.logits(mixed)
    (tmp_path / "cut.wav").write_bytes(b"RIFF")
    with pytest.raises(InputError, match="damaged"):
        model.transcribe(tmp_path / "cut.wav")
    with pytest.raises(InputError, match="truncate is for texts"):
        model.logits(sound(1.0), truncate=True)


def test_other_calls_name_the_right_one(model: Encoder) -> None:
    with pytest.raises(BundleKindError, match=r"an encoder of sounds .* `ortolan transcribe`"):
        model.embed(sound(1.0))
    with pytest.raises(BundleKindError, match="classify"):
        model.classify(sound(1.0))


def test_windows_that_are_too_short_to_overlap_are_rejected(saved: Saved, tmp_path: Path) -> None:
    ortolan.export(saved[0] / "source", tmp_path / "bundle", max_context=10)
    tiny = ortolan.load(tmp_path / "bundle", Encoder)
    tiny.transcribe(sound(0.1))
    with pytest.raises(ContextLengthError, match="larger --max-context"):
        tiny.transcribe(sound(0.2))


def test_a_model_without_a_head_gives_vectors(tmp_path: Path) -> None:
    reference = case("hubert", head="Model").write(tmp_path / "source")
    ortolan.export(tmp_path / "source", tmp_path / "bundle")
    bare = ortolan.load(tmp_path / "bundle", Encoder)
    wave = torch.from_numpy(heard(sound(0.5))[None])
    expected = reference_output(reference, input_values=wave)[0].numpy()
    assert_close(bare.states(sound(0.5))[0], expected)
    with pytest.raises(BundleKindError, match="turns sounds into text"):
        bare.transcribe(sound(0.5))


def test_low_bit_weights_are_verified(saved: Saved, tmp_path: Path) -> None:
    divergences = list[float]()
    cases: list[tuple[PrecisionName, float | None]] = [("int8", None), ("int4", 5.0)]
    for precision, bound in cases:
        options, out = ortolan.ExportOptions(max_kl=bound), tmp_path / precision
        ortolan.export(saved[0] / "source", out, precision=precision, options=options)
        report = verify(out, isolate=False)
        assert report.verdict == "PASS"
        assert report.quality is not None
        divergences.append(report.quality.mean_kl or 0)
    assert 0 < 10 * divergences[0] < divergences[1]


def test_a_preview_says_whether_symbols_are_missing(saved: Saved, tmp_path: Path) -> None:
    assert preview(saved[0] / "source").missing == {}
    case().write(tmp_path)
    assert preview(tmp_path).missing == {"vocab.json": "the bundle gives logits, not text"}


def test_a_live_model_is_exported_with_its_symbols(saved: Saved, tmp_path: Path) -> None:
    kind: Any = Wav2Vec2ForCTC
    live = kind.from_pretrained(saved[0] / "source")
    ortolan.export(live, tmp_path / "bundle")
    loaded = ortolan.load(tmp_path / "bundle", Encoder, threads=1)
    alone = ortolan.load(saved[0] / "bundle", Encoder, threads=1)
    assert loaded.transcribe(sound(0.7)) == alone.transcribe(sound(0.7))


def test_attention_maps_are_refused(saved: Saved, tmp_path: Path) -> None:
    options = ortolan.ExportOptions(attention_maps=True)
    with pytest.raises(ortolan.OrtolanError, match="not supported for sounds of any length"):
        ortolan.export(saved[0] / "source", tmp_path / "bundle", options=options)


def test_standard_operators_give_the_same_logits(saved: Saved, tmp_path: Path) -> None:
    folder, reference = saved
    options = ortolan.ExportOptions(attention="portable")
    ortolan.export(folder / "source", tmp_path / "bundle", options=options)
    portable = ortolan.load(tmp_path / "bundle", Encoder, threads=1)
    for seconds in (0.1, 0.7):
        assert_close(portable.logits(sound(seconds))[0], logits_of(reference, sound(seconds)))


def test_weights_that_are_not_finite_are_reported(
    model: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(inputs: Any) -> Any:
        vectors = (inputs["wave"].shape[1] - WINDOW) // HOP + 1
        return {"output": np.full((1, vectors, len(SYMBOLS)), np.nan, np.float32)}

    monkeypatch.setattr(model._engine, "encode", encode)
    with pytest.raises(NumericError, match="not finite"):
        model.transcribe(sound(0.5))
