"""How a sound becomes a spectrogram, from a checkpoint's preprocessor_config.json.

The keys are those of Hugging Face's WhisperFeatureExtractor. Absent ones have its defaults, but for
the sizes of a spectrogram, which config.json has too.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ortolan.export.errors import OptionError
from ortolan.export.source.preprocessing import PREPROCESSOR
from ortolan.modeling.config import AudioInput
from ortolan.runtime.bundle.manifest import AudioSource

INERT = frozenset(
    {
        *("feature_extractor_type", "processor_class", "return_attention_mask", "padding_side"),
        *("model_input_names", "return_tensors", "_valid_processor_keys"),
        # Follow from other keys, also in transformers.
        *("mel_filters", "n_samples", "nb_max_frames"),
    }
)
"""Keys that do not change the features of a single sound."""

OFF = ("dither", "padding_value", "do_normalize")
"""Steps that a bundle does not do."""


class Extractor(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that are read; None for what config.json says."""

    feature_size: int | None = None
    sampling_rate: int = 16_000
    hop_length: int = 160
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
    """The input of an encoder of speech.

    Args:
        config: of the encoder.
        folder: of the checkpoint; None for the defaults.

    Raises:
        OptionError: the file is damaged, has unknown keys or steps, or belongs to another model.
    """
    path = None if folder is None else folder / PREPROCESSOR
    values = _read(path) if path is not None and path.is_file() else {}
    for key in OFF:
        if values.get(key):
            raise OptionError(
                f"{PREPROCESSOR}: expected {key} 0 or false, got {values[key]!r:.40}. This "
                "processor cannot be reproduced."
            )
    unknown = sorted(values.keys() - INERT - set(OFF) - set(Extractor.__struct_fields__))
    if unknown:
        raise OptionError(
            f"{PREPROCESSOR}: expected keys of WhisperFeatureExtractor, got "
            f"{', '.join(unknown)[:200]}. Remove those that change nothing."
        )
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
    except (msgspec.ValidationError, ZeroDivisionError) as error:
        raise OptionError(f"{PREPROCESSOR}: {error}. Correct it.") from error
    if (source.bins, source.frames) != (config.bins, config.frames):
        raise OptionError(
            f"{PREPROCESSOR}: expected {config.bins} mel bins and {config.frames} frames, as in "
            f"config.json, got {source.bins} and {source.frames}. Correct feature_size or "
            "chunk_length."
        )
    return source


def _read(path: Path) -> Mapping[str, object]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError) as error:
        raise OptionError(f"{path}: cannot be read: {error}. Copy it again.") from error
