"""How an image becomes pixels, from a checkpoint's preprocessor_config.json.

The keys are those of Hugging Face's image processors.
"""

import math
from pathlib import Path
from typing import Literal

import msgspec

from ortolan.export.errors import OptionError
from ortolan.modeling.config import PatchInput
from ortolan.runtime.bundle.manifest import ImageSource

PREPROCESSOR = "preprocessor_config.json"

DEFAULT_MEAN = DEFAULT_STD = 0.5
"""Mean and deviation of every channel, as in the published ViTs."""

BYTES = 1 / 255

Resample = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]

RESAMPLES: tuple[Resample, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Resampling filters in the order of Pillow's numbers."""

STEPS = frozenset({"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"})
"""Steps that a bundle does; any other would silently change the image."""


class _Preprocessor(msgspec.Struct):
    """The fields that are read; absent ones have the values of a ViT."""

    size: int | dict[str, int] | None = None
    resample: int | None = None
    do_rescale: bool | None = None
    rescale_factor: float | None = None
    do_normalize: bool | None = None
    image_mean: float | tuple[float, ...] | None = None
    image_std: float | tuple[float, ...] | None = None


def image_source(config: PatchInput, folder: Path | None) -> ImageSource:
    """The input of an image encoder.

    Args:
        config: of its input.
        folder: of the checkpoint; without one, or without the file, a ViT's defaults apply.

    Raises:
        OptionError: the file cannot be read, is for images of another size, or asks for a step
            that a bundle does not do.
    """
    path = None if folder is None else folder / PREPROCESSOR
    processor = _Preprocessor() if path is None or not path.is_file() else _read(path)
    height, width = config.image_size
    if _size(processor.size, config.image_size) != config.image_size:
        raise _error(f"images of {height} x {width} pixels, as in config.json", f"{processor.size}")
    resample = RESAMPLES.index("bilinear") if processor.resample is None else processor.resample
    if not 0 <= resample < len(RESAMPLES):
        raise _error(f"resample from 0 to {len(RESAMPLES) - 1}", f"{resample}")
    mean, std = (0.0,) * config.channels, (1.0,) * config.channels
    if processor.do_normalize is not False:
        mean = _channels("image_mean", processor.image_mean, DEFAULT_MEAN, config.channels)
        std = _channels("image_std", processor.image_std, DEFAULT_STD, config.channels)
    scale = BYTES if processor.rescale_factor is None else processor.rescale_factor
    scale = 1.0 if processor.do_rescale is False else scale
    if min(*std, scale) <= 0 or not math.isfinite(scale):
        raise _error("positive rescale_factor and image_std", f"{scale} and {std}")
    return ImageSource(
        channels=config.channels,
        height=height,
        width=width,
        mean=mean,
        std=std,
        scale=scale,
        resample=RESAMPLES[resample],
    )


def _read(path: Path) -> _Preprocessor:
    try:
        data = path.read_bytes()
        values = msgspec.json.decode(data, type=dict[str, object])
        processor = msgspec.json.decode(data, type=_Preprocessor)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _error("a JSON object of an image processor", str(error)[:200]) from error
    unknown = [
        name
        for name, value in values.items()
        if name.startswith("do_") and name not in STEPS and value not in (False, None)
    ]
    if unknown:
        raise _error(f"no steps but {', '.join(sorted(STEPS))}", ", ".join(unknown)[:200])
    return processor


def _size(size: int | dict[str, int] | None, default: tuple[int, int]) -> tuple[int, int]:
    """Height and width."""
    match size:
        case None:
            return default
        case int(side):
            return side, side
        case dict() if size.keys() == {"height", "width"}:
            return size["height"], size["width"]
        case _:
            return 0, 0


def _channels(
    name: str, value: float | tuple[float, ...] | None, default: float, channels: int
) -> tuple[float, ...]:
    """One number for each channel."""
    value = default if value is None else value
    numbers = value if isinstance(value, tuple) else (value,) * channels
    if len(numbers) != channels or not all(map(math.isfinite, numbers)):
        raise _error(f"{name} of {channels} numbers, one for each channel", f"{numbers}")
    return tuple(map(float, numbers))


def _error(expected: str, got: str) -> OptionError:
    return OptionError(f"{PREPROCESSOR}: expected {expected}, got {got}. Correct or remove it.")
