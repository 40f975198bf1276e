"""Transcriptions with CTC, against transformers."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from syrupy.assertion import SnapshotAssertion
from tests.modeling.families.test_wave_parity import case
from tests.modeling.tiny_encoders import reference_output
from tests.refusals import refusal
from tests.runtime.transcription.conftest import Saved
from tests.runtime.transcription.tiny_wav2vec2 import (
    HOP,
    WINDOW,
    heard,
    logits_of,
    tokenizer,
)
from tests.runtime.transcription.tiny_whisper import RATE, sound
from tests.tiny.numbers import assert_close
from transformers import (
    AutomaticSpeechRecognitionPipeline,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
)

import ortolan
from ortolan.export.preview.preview import preview
from ortolan.runtime import Encoder, Transcript
from ortolan.runtime.transcription.ctc import PAUSE_S

pytestmark = pytest.mark.slow

VECTORS = 60
"""Vectors of the longest window here: 0.6 seconds."""


@pytest.fixture(scope="module")
def saved(speech: Callable[[str], Saved]) -> Saved:
    return speech("wav2vec2")


@pytest.fixture(scope="module")
def model(saved: Saved) -> Encoder:
    """Reads sounds of 15 seconds."""
    return ortolan.load(saved[0] / "bundle", Encoder, threads=1)


@pytest.fixture(scope="module")
def short(saved: Saved, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """Reads sounds of 0.6 seconds."""
    out = tmp_path_factory.mktemp("short") / "bundle"
    ortolan.export(saved[0] / "source", out, max_context=VECTORS)
    return ortolan.load(out, Encoder, threads=1)


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
    [
        ("wav2vec2", "group", True),
        ("hubert", "layer", False),
    ],
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
    assert "had no vocab.json" in refusal(lambda: loaded.transcribe(waves))


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


def test_a_list_is_computed_one_by_one(model: Encoder) -> None:
    sounds = [sound(seconds) for seconds in (0.5, 1.3, 0.5)]
    for own, row in zip(sounds, model.logits(sounds), strict=True):
        np.testing.assert_array_equal(row, model.logits(own)[0])
    with model.serve() as service:
        for own, row in zip(sounds, service.logits(sounds).result(), strict=True):
            np.testing.assert_array_equal(row, model.logits(own)[0])


REFUSED: dict[str, Callable[[Any], object]] = {
    "shorter than a vector": lambda model: model.transcribe(sound(1.0)[: WINDOW - 1]),
    "longer than the encoder reads": lambda model: model.logits(sound(1.0)),
    "no file": lambda model: model.logits([sound(0.5), "absent.wav"]),
    "truncation": lambda model: model.logits(sound(0.5), truncate=True),
    "a vector": lambda model: model.embed(sound(0.5)),
    "labels": lambda model: model.classify(sound(0.5)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_transcription_is_refused(
    short: Encoder, name: str, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: REFUSED[name](short)) == snapshot


def test_exports_that_cannot_transcribe_are_refused(
    saved: Saved, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    source, out = saved[0] / "source", tmp_path / "bundle"
    options = ortolan.ExportOptions(attention_maps=True)
    assert refusal(lambda: ortolan.export(source, out, options=options)) == snapshot
    ortolan.export(source, out, max_context=10)
    tiny = ortolan.load(out, Encoder)
    tiny.transcribe(sound(0.1))
    assert refusal(lambda: tiny.transcribe(sound(0.2))) == snapshot


def test_a_live_model_and_standard_operators_give_the_same(
    saved: Saved, model: Encoder, tmp_path: Path
) -> None:
    kind: Any = Wav2Vec2ForCTC
    live = kind.from_pretrained(saved[0] / "source")
    options = ortolan.ExportOptions(attention="portable")
    ortolan.export(live, tmp_path / "bundle", options=options)
    portable = ortolan.load(tmp_path / "bundle", Encoder, threads=1)
    assert portable.transcribe(sound(0.7)).text == model.transcribe(sound(0.7)).text
    for seconds in (0.1, 0.7):
        assert_close(portable.logits(sound(seconds))[0], logits_of(saved[1], sound(seconds)))


def test_a_model_without_a_head_gives_vectors(tmp_path: Path) -> None:
    reference = case("hubert", head="Model").write(tmp_path / "source")
    ortolan.export(tmp_path / "source", tmp_path / "bundle")
    bare = ortolan.load(tmp_path / "bundle", Encoder)
    wave = torch.from_numpy(heard(sound(0.5))[None])
    expected = reference_output(reference, input_values=wave)[0].numpy()
    assert_close(bare.states(sound(0.5))[0], expected)
    assert "turns sounds into text" in refusal(lambda: bare.transcribe(sound(0.5)))


def test_a_preview_says_whether_symbols_are_missing(saved: Saved, tmp_path: Path) -> None:
    assert preview(saved[0] / "source").missing == {}
    case().write(tmp_path)
    assert preview(tmp_path).missing == {"vocab.json": "the bundle gives logits, not text"}
