"""Speech at export: the feature extractor as data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor

from ortolan.export.errors import OptionError
from ortolan.export.source.audio_preprocessing import audio_source
from ortolan.export.source.speech_tokens import opening_tokens, speech_tokens
from ortolan.modeling.config import AudioInput
from ortolan.runtime.bundle.sources import AudioSource
from ortolan.runtime.inputs.audio import mel_filters, read_chunks

SECONDS = 2
INPUT = AudioInput(bins=80, frames=100 * SECONDS)


def extractor(folder: Path, **values: Any) -> WhisperFeatureExtractor:
    extract: Any = WhisperFeatureExtractor
    made: WhisperFeatureExtractor = extract(chunk_length=SECONDS, **values)
    made.save_pretrained(folder)
    return made


def sound(samples: int, rate: int, channels: int = 1) -> NDArray[np.float64]:
    """Tones that glide, with noise."""
    times = np.arange(samples)[:, None] / rate
    noise = np.random.default_rng(samples).normal(size=(samples, channels))
    tones = np.sin(2 * np.pi * (200 + 300 * times + 90 * np.arange(channels)) * times)
    return 0.4 * tones + 0.05 * noise


def expected(
    reference: WhisperFeatureExtractor, samples: NDArray[np.float32], *, exact: bool
) -> NDArray[np.float32]:
    """Features `(bins, frames)` of transformers, padded to whole chunks."""
    size = max(reference.n_samples, len(samples))
    padded = np.pad(samples, (0, size - len(samples)))
    # By NumPy in float64, or by PyTorch in float32.
    if exact:
        features = reference._np_extract_fbank_features(padded[None], "cpu")[0]
    else:
        features = reference._torch_extract_fbank_features(padded[None], "cpu")[0]
    rest = -features.shape[1] % reference.nb_max_frames
    return np.pad(features, ((0, 0), (0, rest)))


SOUNDS = [
    # samples, rate, channels, format of soundfile
    (16_000, 16_000, 1, "PCM_16"),
    (1, 16_000, 1, "PCM_16"),
    (159, 16_000, 1, "PCM_16"),
    (7_919, 16_000, 2, "PCM_24"),
    (31_999, 16_000, 1, "FLOAT"),
    (32_000, 16_000, 1, "PCM_U8"),
    (50_001, 16_000, 1, "PCM_32"),
    (101_111, 16_000, 3, "DOUBLE"),
    (44_101, 44_100, 2, "PCM_16"),
    (20_011, 48_000, 1, "PCM_24"),
    (9_001, 8_000, 2, "FLOAT"),
    (70_003, 22_050, 6, "PCM_U8"),
]


@pytest.mark.parametrize(("samples", "rate", "channels", "form"), SOUNDS)
@pytest.mark.parametrize("bins", [80, 128])
def test_features_equal_those_of_transformers(
    tmp_path: Path, samples: int, rate: int, channels: int, form: str, bins: int
) -> None:
    reference = extractor(tmp_path, feature_size=bins)
    source = audio_source(AudioInput(bins=bins, frames=INPUT.frames), tmp_path)
    path = tmp_path / "sound.wav"
    soundfile.write(path, sound(samples, rate, channels), rate, subtype=form)
    mono = soundfile.read(path, dtype="float32", always_2d=True)[0].mean(1)
    mono = mono if rate == source.rate else soxr.resample(mono, rate, source.rate)
    ours = np.concatenate(read_chunks(path, source), 1)
    np.testing.assert_allclose(ours, expected(reference, mono, exact=True), rtol=0, atol=1e-5)
    # PyTorch's float32 spectrum rounds far below the loudest tone.
    np.testing.assert_allclose(ours, expected(reference, mono, exact=False), rtol=0, atol=1e-3)


@pytest.mark.parametrize("bins", [40, 80, 128])
def test_mel_filters_equal_those_of_transformers(tmp_path: Path, bins: int) -> None:
    reference = extractor(tmp_path, feature_size=bins)
    source = audio_source(AudioInput(bins=bins, frames=INPUT.frames), tmp_path)
    np.testing.assert_allclose(mel_filters(source), reference.mel_filters.T, rtol=1e-9, atol=1e-12)


def test_without_a_file_the_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    extract: Any = WhisperFeatureExtractor
    reference = extract()
    expected = AudioSource(rate=16_000, window=400, hop=160, bins=80, frames=3000, vectors=1500)
    assert reference.nb_max_frames == expected.frames
    assert audio_source(AudioInput(bins=80, frames=3000), tmp_path) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dither": 0.1}, "dither"),
        ({"padding_value": 1.0}, "padding_value"),
        ({"do_normalize": True}, "do_normalize"),
        ({"preemphasis": 0.97}, "preemphasis"),
        ({"feature_size": 128}, "128"),
        ({"chunk_length": 3}, "300"),
        ({"hop_length": 0}, "Correct it"),
        ({"n_fft": "many"}, "n_fft"),
        ({"sampling_rate": 10}, "rate"),
    ],
)
def test_other_steps_and_sizes_are_rejected(
    tmp_path: Path, values: dict[str, object], message: str
) -> None:
    extractor(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    with pytest.raises(OptionError, match=message):
        audio_source(INPUT, tmp_path)


def test_a_damaged_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(OptionError, match="cannot be read"):
        audio_source(INPUT, tmp_path)


EN, DE, TRANSCRIBE, TRANSLATE, NO_TIMES = range(10, 15)
MODERN: dict[str, Any] = {
    "lang_to_id": {"<|en|>": EN, "<|de|>": DE},
    "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
    "no_timestamps_token_id": NO_TIMES,
}
HEARD = AudioSource(rate=16_000, window=400, hop=160, bins=20, frames=50, vectors=25)


def opening(folder: Path, generation: dict[str, Any], **config: Any) -> tuple[int | None, ...]:
    (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "config.json").write_text(json.dumps(config))
    speech = speech_tokens(folder, HEARD, vocab_size=64)
    return opening_tokens(folder, HEARD, speech, vocab_size=64)


FORCED = [[1, DE], [2, TRANSLATE], [3, NO_TIMES]]


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (MODERN, ()),
        (MODERN | {"forced_decoder_ids": [[1, None], [2, TRANSCRIBE]]}, ()),
        (MODERN | {"forced_decoder_ids": FORCED}, (DE, TRANSLATE)),
        ({"forced_decoder_ids": FORCED}, (DE, TRANSLATE, NO_TIMES)),
        (MODERN | {"forced_decoder_ids": [[1, None], [2, TRANSLATE]]}, (None, TRANSLATE)),
        ({"forced_decoder_ids": [[1, None], [2, TRANSLATE]]}, (TRANSLATE,)),
        (MODERN | {"language": "German", "forced_decoder_ids": FORCED}, (DE, TRANSCRIBE)),
        (MODERN | {"task": "translate", "forced_decoder_ids": FORCED}, (None, TRANSLATE)),
        (MODERN | {"task": "transcribe"}, ()),
    ],
)
def test_the_tokens_that_a_checkpoint_forces_open_a_transcription(
    generation: dict[str, Any], expected: tuple[int | None, ...], tmp_path: Path
) -> None:
    assert opening(tmp_path, generation) == expected
    # config.json counts where the other file forces nothing
    told = "forced_decoder_ids" in generation or "task" in generation
    other = opening(tmp_path, generation, forced_decoder_ids=[[1, EN]])
    assert other == (expected if told else (EN,))


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"forced_decoder_ids": [[2, DE]]}, "places 1, 2"),
        ({"forced_decoder_ids": [[1, DE], [2, None]]}, "only the first"),
        ({"forced_decoder_ids": [[1, 64]]}, "from 0 to 63"),
        ({"language": "klingon"}, "klingon"),
        ({"task": "sing"}, "sing"),
        ({"language": ["en", "de"]}, "language"),
    ],
)
def test_other_tokens_and_names_are_rejected(
    generation: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=message):
        opening(tmp_path, MODERN | generation)
