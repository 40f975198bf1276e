"""How a sound becomes a spectrogram or a wave, from a checkpoint's preprocessor_config.json.

The keys are those of Hugging Face's WhisperFeatureExtractor and Wav2Vec2FeatureExtractor. Absent
ones have their defaults, but for the sizes of a spectrogram, which config.json has too.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ortolan.export.errors import OptionError
from ortolan.export.source.preprocessing import PREPROCESSOR, processor_keys
from ortolan.modeling.config import AudioInput, ChunkedAudioInput, WaveInput
from ortolan.modeling.config.inputs import CHUNK_STRIDE
from ortolan.runtime.bundle.sound_sources import AudioSource, ChunkedSource, WaveSource
from ortolan.runtime.limits import MAX_AUDIO_SECONDS

INERT = frozenset(
    {
        *("feature_extractor_type", "processor_class", "return_attention_mask", "padding_side"),
        *("model_input_names", "return_tensors", "_valid_processor_keys"),
    }
)
"""Keys that do not change the features of a single sound."""

DERIVED = frozenset(("mel_filters", "n_samples", "nb_max_frames"))
"""Keys of a spectrogram that follow from others, also in transformers."""

OFF = ("dither", "padding_value", "do_normalize")
"""Steps that a bundle does not do."""


class Extractor(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that are read; None for what config.json says."""

    feature_size: int | None = None
    sampling_rate: int = 16_000
    hop_length: Annotated[int, msgspec.Meta(ge=1)] = 160
    chunk_length: int | None = None
    n_fft: int = 400

    def bins(self, config: AudioInput) -> int:
        """Mel frequencies per frame."""
        return config.bins if self.feature_size is None else self.feature_size

    def frames(self, config: AudioInput) -> int:
        """Frames of a spectrogram."""
        if self.chunk_length is None:
            return config.frames
        return self.chunk_length * self.sampling_rate // self.hop_length


def audio_source(config: AudioInput, folder: Path | None) -> AudioSource:
    """The input of an encoder of speech."""
    values = {} if folder is None else processor_keys(folder, "feature_extractor")
    _check_off(values)
    known = (*INERT, *DERIVED, *OFF, *Extractor.__struct_fields__)
    _check_keys(values, known, "WhisperFeatureExtractor")
    try:
        extractor = msgspec.convert(values, Extractor)
        source = msgspec.convert(
            {
                "kind": "audio",
                "rate": extractor.sampling_rate,
                "window": extractor.n_fft,
                "hop": extractor.hop_length,
                "bins": extractor.bins(config),
                "frames": extractor.frames(config),
                "vectors": config.length,
            },
            AudioSource,
        )
    except msgspec.ValidationError as error:
        raise OptionError(f"{PREPROCESSOR}: {error}. Correct it.") from error
    if (source.bins, source.frames) != (config.bins, config.frames):
        raise OptionError(
            f"{PREPROCESSOR}: expected {config.bins} mel bins and {config.frames} frames, as in "
            f"config.json, got {source.bins} and {source.frames}. Correct feature_size or "
            "chunk_length."
        )
    return source


class ChunkExtractor(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that are read."""

    feature_size: int = 128
    sampling_rate: int = 16_000
    hop_length: int = 160
    n_fft: int = 400
    n_window: int = 50
    min_length: int = 8000


def chunked_source(config: ChunkedAudioInput, folder: Path | None) -> ChunkedSource:
    """The input of an encoder of speech in chunks."""
    values = {} if folder is None else processor_keys(folder, "feature_extractor")
    _check_off(values)
    # No sound is padded to a length.
    known = (*INERT, *DERIVED, *OFF, "chunk_length", *ChunkExtractor.__struct_fields__)
    _check_keys(values, known, "Qwen3ASRFeatureExtractor")
    try:
        extractor = msgspec.convert(
            {"feature_size": config.bins, "n_window": config.chunk // 2, **values}, ChunkExtractor
        )
        source = msgspec.convert(
            {
                "kind": "chunks",
                "rate": extractor.sampling_rate,
                "window": extractor.n_fft,
                "hop": extractor.hop_length,
                "bins": extractor.feature_size,
                "frames": config.frames,
                "chunk": config.chunk,
                "stride": CHUNK_STRIDE,
                "shortest": extractor.min_length,
            },
            ChunkedSource,
        )
    except msgspec.ValidationError as error:
        raise OptionError(f"{PREPROCESSOR}: {error}. Correct it.") from error
    if (source.bins, 2 * extractor.n_window) != (config.bins, config.chunk):
        raise OptionError(
            f"{PREPROCESSOR}: expected {config.bins} mel bins and chunks of {config.chunk} frames, "
            f"as in config.json, got {source.bins} and {2 * extractor.n_window}. Correct "
            "feature_size or n_window."
        )
    return source


class WaveExtractor(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that are read."""

    feature_size: Literal[1] = 1
    sampling_rate: int = 16_000
    do_normalize: bool = True


def wave_source(config: WaveInput, folder: Path | None, *, vectors: int) -> WaveSource:
    """The input of an encoder of waves."""
    values = {} if folder is None else processor_keys(folder, "feature_extractor")
    # No wave is padded.
    known = (*INERT, "padding_value", *WaveExtractor.__struct_fields__)
    _check_keys(values, known, "Wav2Vec2FeatureExtractor")
    try:
        extractor = msgspec.convert(values, WaveExtractor)
        source = msgspec.convert(
            {
                "kind": "wave",
                "rate": extractor.sampling_rate,
                "window": config.window,
                "hop": config.hop,
                "vectors": vectors,
                "normalized": extractor.do_normalize,
            },
            WaveSource,
        )
    except msgspec.ValidationError as error:
        raise OptionError(f"{PREPROCESSOR}: {error}. Correct it.") from error
    if source.length(source.samples) < 1:
        raise OptionError(
            f"max_context must be at least {-(-config.window // config.hop)}, since a vector is "
            f"computed from {config.window} samples (got {vectors})."
        )
    if source.seconds > MAX_AUDIO_SECONDS:
        raise OptionError(
            f"max_context must be at most {MAX_AUDIO_SECONDS * source.rate // source.hop}, the "
            f"vectors of {MAX_AUDIO_SECONDS} seconds (got {vectors})."
        )
    return source


def _check_off(values: Mapping[str, object]) -> None:
    for key in OFF:
        if values.get(key):
            raise OptionError(
                f"{PREPROCESSOR}: expected {key} 0 or false, got {values[key]!r:.40}. This "
                "processor cannot be reproduced."
            )


def _check_keys(values: Mapping[str, object], known: Collection[str], extractor: str) -> None:
    unknown = sorted(values.keys() - set(known))
    if unknown:
        raise OptionError(
            f"{PREPROCESSOR}: expected keys of {extractor}, got {', '.join(unknown)[:200]}. Remove "
            "those that change nothing."
        )
