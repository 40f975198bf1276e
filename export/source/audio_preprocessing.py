"""How a sound becomes a spectrogram or a wave, from a checkpoint's preprocessor_config.json.

The keys are those of Hugging Face's WhisperFeatureExtractor and Wav2Vec2FeatureExtractor. Absent
ones have their defaults, but for the sizes of a spectrogram, which config.json has too.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from ortolan.export.errors import OptionError
from ortolan.export.source.side_file import PREPROCESSOR, processor_keys
from ortolan.modeling.config import AudioInput, ChunkedAudioInput, WaveInput
from ortolan.modeling.config.inputs import CHUNK_STRIDE
from ortolan.runtime.bundle.sound_sources import AudioSource, ChunkedSource, WaveSource
from ortolan.runtime.limits import MAX_AUDIO_SECONDS

T = TypeVar("T", bound=msgspec.Struct)

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
    extractor = _read(Extractor, folder, "WhisperFeatureExtractor", *DERIVED, off=OFF)
    source = _converted(
        AudioSource,
        kind="audio",
        rate=extractor.sampling_rate,
        window=extractor.n_fft,
        hop=extractor.hop_length,
        bins=extractor.bins(config),
        frames=extractor.frames(config),
        vectors=config.length,
    )
    if (source.bins, source.frames) != (config.bins, config.frames):
        raise OptionError(
            f"{PREPROCESSOR}: expected {config.bins} mel bins and {config.frames} frames, as in "
            f"config.json, got {source.bins} and {source.frames}. Correct feature_size or "
            "chunk_length."
        )
    return source


class ChunkExtractor(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that are read; None for what config.json says."""

    feature_size: int | None = None
    sampling_rate: int = 16_000
    hop_length: int = 160
    n_fft: int = 400
    n_window: int | None = None
    min_length: int = 8000


def chunked_source(config: ChunkedAudioInput, folder: Path | None) -> ChunkedSource:
    """The input of an encoder of speech in chunks."""
    # No sound is padded to a length.
    further = (*DERIVED, "chunk_length")
    extractor = _read(ChunkExtractor, folder, "Qwen3ASRFeatureExtractor", *further, off=OFF)
    bins = config.bins if extractor.feature_size is None else extractor.feature_size
    chunk = config.chunk if extractor.n_window is None else 2 * extractor.n_window
    source = _converted(
        ChunkedSource,
        kind="chunks",
        rate=extractor.sampling_rate,
        window=extractor.n_fft,
        hop=extractor.hop_length,
        bins=bins,
        frames=config.frames,
        chunk=config.chunk,
        stride=CHUNK_STRIDE,
        shortest=extractor.min_length,
    )
    if (bins, chunk) != (config.bins, config.chunk):
        raise OptionError(
            f"{PREPROCESSOR}: expected {config.bins} mel bins and chunks of {config.chunk} frames, "
            f"as in config.json, got {bins} and {chunk}. Correct feature_size or n_window."
        )
    return source


class WaveExtractor(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that are read."""

    feature_size: Literal[1] = 1
    sampling_rate: int = 16_000
    do_normalize: bool = True


def wave_source(config: WaveInput, folder: Path | None, *, vectors: int) -> WaveSource:
    """The input of an encoder of waves."""
    # No wave is padded.
    extractor = _read(WaveExtractor, folder, "Wav2Vec2FeatureExtractor", "padding_value")
    source = _converted(
        WaveSource,
        kind="wave",
        rate=extractor.sampling_rate,
        window=config.window,
        hop=config.hop,
        vectors=vectors,
        normalized=extractor.do_normalize,
    )
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


def _read(
    kind: type[T], folder: Path | None, extractor: str, *others: str, off: Sequence[str] = ()
) -> T:
    """The keys of a feature extractor.

    Args:
        kind: the keys that are read.
        folder: of the checkpoint; None for the defaults.
        extractor: class of transformers, for messages.
        others: keys that change nothing.
        off: steps that a bundle does not do, and so must be off.
    """
    values = {} if folder is None else processor_keys(folder, "feature_extractor")
    for key in off:
        if values.get(key):
            raise OptionError(
                f"{PREPROCESSOR}: expected {key} 0 or false, got {values[key]!r:.40}. This "
                "processor cannot be reproduced."
            )
    unknown = values.keys() - {*INERT, *off, *others, *kind.__struct_fields__}
    if unknown:
        raise OptionError(
            f"{PREPROCESSOR}: expected keys of {extractor}, got "
            f"{', '.join(sorted(unknown))[:200]}. Remove those that change nothing."
        )
    return _converted(kind, **values)


def _converted(to: type[T], /, **values: object) -> T:
    try:
        return msgspec.convert(values, to)
    except msgspec.ValidationError as error:
        raise OptionError(f"{PREPROCESSOR}: {error}. Correct it.") from error
