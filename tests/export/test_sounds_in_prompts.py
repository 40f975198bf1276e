"""A decoder that reads sounds, beyond what holds for all (`tests/cases/sounds.py`)."""

from pathlib import Path

import numpy as np
import pytest
from tests.cases.run import Run, Runs
from tests.cases.sounds import (
    FIRST,
    OF_QWEN,
    SECOND,
    by_transformers,
    sound,
    spectrogram,
    vectors,
    wav,
)
from tests.cli.conftest import run_here
from transformers import Qwen3ASRForConditionalGeneration

from ortolan.runtime import Encoder, InputError, load
from ortolan.runtime.inputs.audio import read_parts

pytestmark = pytest.mark.slow

SECONDS = [0.01, 0.3, 0.5, 0.995, 1.0, 1.003, 2.5, 3.0, 3.02, 6.5]
"""Lengths of sounds: shorter and longer than a chunk of one second and a window of three."""


@pytest.fixture
def qwen(runs: Runs) -> Run:
    return runs(OF_QWEN)


def test_spectrograms_and_vectors_of_any_length_are_those_of_transformers(qwen: Run) -> None:
    encoder = qwen.model._encoder
    source = encoder.manifest.source
    reference = Qwen3ASRForConditionalGeneration.from_pretrained(qwen.checkpoint)
    for seconds in SECONDS:
        parts = read_parts(sound(seconds), source)
        ours = np.concatenate(parts, 1)
        theirs = spectrogram(qwen.checkpoint, sound(seconds))[0][0].numpy()
        assert theirs.shape[1] - ours.shape[1] in range(100)
        np.testing.assert_allclose(ours, theirs[:, : ours.shape[1]], atol=1e-5)
        ours = np.concatenate([encoder.rows.vectors(part) for part in parts])
        theirs = vectors(reference, qwen.checkpoint, sound(seconds)).numpy()
        assert sum(map(source.count, parts)) == len(theirs)
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())


def test_files_and_arrays_of_any_rate_are_read(qwen: Run, tmp_path: Path) -> None:
    (tmp_path / "sound.wav").write_bytes(wav(FIRST))
    low = sound(1.0)[::2]
    for same in (
        [FIRST, wav(FIRST), tmp_path / "sound.wav", str(tmp_path / "sound.wav")],
        [{"audio": low, "rate": 8000}, wav(low, 8000)],
    ):
        parts = [each if isinstance(each, dict) else {"audio": each} for each in same]
        wanted, *others = (OF_QWEN.call(qwen.model, [[part, "say"]]) for part in parts)
        assert all(other == wanted for other in others)


@pytest.mark.parametrize("language", [None, "de"])
def test_a_transcript_is_the_answer_of_transformers(language: str | None, qwen: Run) -> None:
    start = "" if language is None else "language German<asr_text>"
    end = f"<|audio_end|><|im_end|>assistant:{start}"
    prompt = ["user:<|audio_start|>", {"audio": SECOND}, end]
    ((_, tokens),) = by_transformers(qwen.checkpoint, [prompt])
    transcript = qwen.model.transcribe(SECOND, language=language)
    (segment,) = transcript.segments
    assert list(segment.tokens[: len(tokens)]) == tokens
    assert len(segment.tokens) <= round(12 * 3.4) + 32
    assert segment.start == 0
    assert segment.end == pytest.approx(3.4)
    assert transcript.language == language
    assert segment.logprob < 0


def test_the_encoder_alone_reads_one_window(qwen: Run) -> None:
    encoder = load(qwen.bundle / "sound", Encoder)
    (states,) = encoder.states([FIRST])
    inner = qwen.model._encoder
    (part,) = read_parts(FIRST, inner.manifest.source)
    np.testing.assert_allclose(states, inner.rows.vectors(part), atol=1e-5)
    with pytest.raises(InputError, match="at most 3 seconds"):
        encoder.states([SECOND])


def test_the_command_says_how_many_vectors_a_sound_has(qwen: Run, tmp_path: Path) -> None:
    done = run_here("export", qwen.checkpoint, tmp_path / "bundle")
    (line,) = [row for row in done.stdout.decode().splitlines() if row.startswith("sounds")]
    assert "sounds of at most 3 seconds, 39 vectors each" in line
