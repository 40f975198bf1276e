"""Pixels, spectrograms and waves: what an encoder reads of pictures and sounds.

Rounded weights do not change them, so they are compared in bundles of every precision.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ortolan.export.witness import media
from ortolan.export.witness.bundled import FLOAT32, Bundled
from ortolan.export.witness.compare import Answer, Rough
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.sources import Inputs, image_inputs, sound_inputs
from ortolan.export.witness.topic import Topic
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.sound_sources import AudioSource, ChunkedSource, WaveSource
from ortolan.runtime.bundle.source import PATCHES
from ortolan.runtime.errors import InputError
from ortolan.runtime.inputs.audio import read_chunks, read_parts, read_samples, wave_of
from ortolan.runtime.inputs.readers import patch_feeds, read_image
from ortolan.runtime.inputs.tiles import cut

LEVELS = 1.1
"""Levels of 255 that a pixel may differ by where torchvision resizes instead of Pillow."""


def pictures(bundled: Bundled) -> Mapping[str, Any]:
    """Pictures that a model reads; it may refuse narrow ones, or all that need another size."""
    if not isinstance(bundled.reads, ImageSource | PatchSource):
        return {}
    found = {}
    for name, pixels in media.PICTURES.items():
        with suppress(InputError):
            our_pixels(bundled, pixels)
            found[name] = pixels
    return found


def our_pixels(bundled: Bundled, pixels: Any) -> Answer:
    """Pixels of a picture or of its tiles; as flat patches where the encoder reads those."""
    source, features = bundled.reads, bundled.manifest.features
    tiles = None if features is None else features.tiles
    images = [read_image(pixels, source)] if tiles is None else cut(pixels, source, tiles).pixels
    if not isinstance(source, PatchSource):
        return list(images)
    if source.layout == "channels_last":  # whose processors leave squares to the model
        source = replace(source, merge=1)
    return [patch_feeds(own, source)[PATCHES].reshape(-1, source.numbers) for own in images]


def their_pixels(publisher: Publisher, pixels: Any) -> Answer:
    """The same from the image processor, without padding."""
    inputs, processor = image_inputs(publisher, pixels), publisher.image_processor
    values, mask = inputs["pixel_values"].numpy(), inputs.get("pixel_attention_mask")
    if values.ndim == 2:  # patches of one picture
        images = [values]
    elif values.ndim == 3 and mask is not None:
        images = [rows[own.bool().numpy()] for rows, own in zip(values, mask, strict=True)]
    else:
        images = list(values.reshape(-1, *values.shape[-3:]))
    if getattr(processor, "backend", "pil") == "pil":
        return images
    level = processor.rescale_factor / np.min(processor.image_std)
    return Rough(images, LEVELS * level / min(np.abs(own).max() for own in images))


def sounds(bundled: Bundled) -> Mapping[str, Any]:
    """Sounds, for a model that hears."""
    source = bundled.reads
    if not isinstance(source, AudioSource | WaveSource | ChunkedSource):
        return {}
    return {name: media.sound(seconds, source.rate) for name, seconds in media.SECONDS.items()}


def our_features(bundled: Bundled, samples: NDArray[np.float32]) -> Answer:
    """The rate of samples, and a wave `(N,)` or a spectrogram `(bins, frames)`."""
    source = bundled.reads
    match source:
        case WaveSource():
            values = wave_of(read_samples(samples, source), source)
        case ChunkedSource():
            values = np.concatenate(read_parts(samples, source), axis=-1)
        case _:
            values = np.concatenate(list(read_chunks(samples, source)), axis=-1)
            values = values[:, : len(samples) // source.hop]
    return {"rate": source.rate, "values": values}


def their_features(publisher: Publisher, samples: NDArray[np.float32]) -> Answer:
    """The same from the feature extractor."""
    inputs, extractor = whole_features(publisher, samples), publisher.feature_extractor
    if "input_values" in inputs:
        values = inputs["input_values"][0]
    else:
        is_sound = inputs["attention_mask"][0].bool()
        values = inputs["input_features"][0][:, is_sound][:, : len(samples) // extractor.hop_length]
    return {"rate": extractor.sampling_rate, "values": values.numpy()}


def whole_features(publisher: Publisher, samples: NDArray[np.float32]) -> Inputs:
    """What a feature extractor makes of a whole sound, as transformers' pipeline calls it."""
    options: dict[str, Any] = {"return_attention_mask": True}
    window = getattr(publisher.feature_extractor, "n_samples", 0)
    is_fixed = publisher.config.model_type == "whisper"
    if not is_fixed or len(samples) > window:
        options |= {"truncation": False, "padding": "longest"}
    return sound_inputs(publisher, samples, **options)


IMAGE_INPUTS = Topic(
    name="image inputs",
    questions=pictures,
    ours=our_pixels,
    theirs=their_pixels,
    tolerance=FLOAT32,
)
SOUND_INPUTS = Topic(
    name="sound inputs",
    questions=sounds,
    ours=our_features,
    theirs=their_features,
    tolerance=FLOAT32,
)
