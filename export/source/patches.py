"""How an image that keeps its proportions becomes patches, from a checkpoint's image processor."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ortolan.export.errors import OptionError
from ortolan.export.source.preprocessing import (
    BICUBIC,
    BILINEAR,
    BYTES,
    CLIP_MEAN,
    CLIP_STD,
    INERT,
    PREPROCESSOR,
    RESAMPLES,
    SUFFIXES,
    Numbers,
    channel_numbers,
    processor_values,
)
from ortolan.modeling.config import EncoderConfig, GridInput, GridPositions
from ortolan.runtime.bundle.image_sources import PatchSource

MOST_PATCHES = 1 << 12
"""Patches of an image whose processor allows more: attention to all of them takes memory by their
square, 1 GiB in Qwen3-VL."""

OF_SIZES = ("min_pixels", "max_pixels")
"""Older names of the limits in `size`."""

ON = ("do_resize", "do_rescale", "do_normalize")
"""Steps that are always done."""

DERIVED = ("size", "do_pad", "max_num_patches")
"""Keys of LFM2-VL that change nothing: sizes follow from others, and no image is padded."""


class PatchProcessor(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that are read, with the defaults that image processors share."""

    patch_size: int | None = None
    merge_size: int | None = None
    temporal_patch_size: int | None = None
    size: dict[str, int | None] | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    encoder_patch_size: int | None = None
    resample: int = BILINEAR
    rescale_factor: float = BYTES
    image_mean: Numbers = 0.5
    image_std: Numbers = 0.5
    do_convert_rgb: bool = False
    max_num_patches: int | None = None
    downsample_factor: int | None = None
    min_image_tokens: int | None = None
    max_image_tokens: int | None = None
    do_image_splitting: bool | None = None
    tile_size: int | None = None
    min_tiles: int | None = None
    max_tiles: int | None = None
    max_pixels_tolerance: float | None = None
    use_thumbnail: bool | None = None

    @property
    def cuts(self) -> bool:
        """Whether large images are cut into tiles."""
        return bool(self.do_image_splitting) and (self.min_tiles, self.max_tiles) != (1, 1)


STANDARD_MEAN, STANDARD_STD = 0.5, 0.5
"""Mean and standard deviation of each channel: transformers' `IMAGENET_STANDARD_*`."""

PROCESSORS: Mapping[str, PatchProcessor] = {
    "Lfm2Vl": PatchProcessor(
        encoder_patch_size=16,
        image_mean=STANDARD_MEAN,
        image_std=STANDARD_STD,
        downsample_factor=2,
        min_image_tokens=64,
        max_image_tokens=256,
        do_image_splitting=True,
        tile_size=512,
        min_tiles=2,
        max_tiles=10,
        max_pixels_tolerance=2.0,
        use_thumbnail=True,
    ),
    "Qwen2VL": PatchProcessor(
        patch_size=14,
        merge_size=2,
        temporal_patch_size=2,
        resample=BICUBIC,
        image_mean=CLIP_MEAN,
        image_std=CLIP_STD,
        do_convert_rgb=True,
        size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    ),
    "Siglip2": PatchProcessor(patch_size=16, max_num_patches=256),
}
"""Defaults of the image processors of transformers, by the start of their class names."""

PROCESSOR_OF: Mapping[str, str] = {
    "lfm2_vl": "Lfm2Vl",
    "qwen3_5": "Qwen2VL",
    "qwen3_vl": "Qwen2VL",
}
"""Image processor of a `model_type` whose file names none; of other models, `Siglip2`."""


def patch_source(config: EncoderConfig, folder: Path | None) -> PatchSource:
    """The input of an encoder of images that keep their proportions."""
    source = config.input
    if not isinstance(source, GridInput):
        raise TypeError("expected an encoder of patches")
    processor = read_patch_processor(config, folder)
    own = (
        processor.patch_size or processor.encoder_patch_size,
        processor.merge_size or processor.downsample_factor or 1,
        processor.temporal_patch_size or 1,
    )
    if own != (source.patch_size, source.merge, source.frames):
        raise _error(
            f"patches of {source.patch_size} pixels and {source.frames} frames in squares of "
            f"{source.merge} by {source.merge}, as in config.json",
            f"{own[0]}, {own[2]} and {own[1]}",
        )
    if not 0 <= processor.resample < len(RESAMPLES):
        raise _error(f"resample from 0 to {len(RESAMPLES) - 1}", processor.resample)
    fields = {
        "kind": "patches",
        "channels": source.channels,
        "patch": source.patch_size,
        "merge": source.merge,
        "frames": source.frames,
        "layout": source.layout,
        "mean": channel_numbers("image_mean", processor.image_mean, source.channels),
        "std": channel_numbers("image_std", processor.image_std, source.channels),
        "scale": processor.rescale_factor,
        "resample": RESAMPLES[processor.resample],
        **_sizes(processor, source),
    }
    if processor.do_convert_rgb and source.channels == 3:
        fields["background"] = "white"
    if isinstance(config.positions, GridPositions):
        table = config.positions
        fields["table"] = {"side": table.side, "interpolation": table.interpolation}
    if config.has_axes:
        fields["axes"] = True
    try:
        return msgspec.convert(fields, PatchSource)
    except msgspec.ValidationError as error:
        raise OptionError(f"{PREPROCESSOR}: {error}. Correct it.") from error


def read_patch_processor(config: EncoderConfig, folder: Path | None) -> PatchProcessor:
    """The keys of a checkpoint's image processor over its defaults.

    Sizes of patches that the file leaves out are those of the model.
    """
    values = {} if folder is None else processor_values(folder)
    named = str(
        values.get("image_processor_type") or PROCESSOR_OF.get(config.model_type, "Siglip2")
    )
    suffix = next((suffix for suffix in SUFFIXES if named.endswith(suffix)), "")
    defaults = PROCESSORS.get(named.removesuffix(suffix))
    if defaults is None:
        raise _error(f"image_processor_type to begin with one of {', '.join(PROCESSORS)}", named)
    own = {key for key in PatchProcessor.__struct_fields__ if getattr(defaults, key) is not None}
    own.update(OF_SIZES if defaults.size is not None else ())
    derived = set(DERIVED) if defaults.max_image_tokens is not None else set()
    unknown = values.keys() - own - derived - INERT - set(ON)
    if unknown:
        raise _error(f"keys of {named}", ", ".join(sorted(unknown))[:200])
    off = [key for key in ON if values.get(key) is False]
    if off:
        raise _error(f"{off[0]} true", "false")
    given = _of_model(defaults, config) | {key: values[key] for key in own if key in values}
    try:
        return msgspec.convert(msgspec.structs.asdict(defaults) | given, type=PatchProcessor)
    except msgspec.ValidationError as error:
        raise _error("a JSON object of an image processor", str(error)[:200]) from error


def _of_model(defaults: PatchProcessor, config: EncoderConfig) -> dict[str, object]:
    """Defaults that depend on the patches of a model."""
    if not isinstance(config.input, GridInput):
        raise TypeError("expected an encoder of patches")
    size = config.input.patch_size
    if defaults.encoder_patch_size is None:
        return {"patch_size": size}
    tile = (defaults.tile_size or 0) // defaults.encoder_patch_size * size
    side = config.input.merge
    return {"encoder_patch_size": size, "downsample_factor": side, "tile_size": tile}


def _sizes(processor: PatchProcessor, source: GridInput) -> dict[str, object]:
    """The most patches of an image, and the rule that chooses its size."""
    if processor.size is not None:
        return _pixels(processor, source)
    least, most = processor.min_image_tokens, processor.max_image_tokens
    if least is None or most is None:
        return {"patches": processor.max_num_patches, "size": {"by": "most_patches"}}
    square = source.patch_size * source.merge
    side = processor.tile_size or 0
    if side % square:
        raise _error(f"tile_size to be a multiple of {square}", side)
    of_tile = (side // source.patch_size) ** 2 if processor.cuts else 0
    return {
        "patches": max(most * source.merge**2, of_tile),
        "size": {
            "by": "whole_squares",
            "least": least * square**2,
            "most": most * square**2,
        },
    }


def _pixels(processor: PatchProcessor, source: GridInput) -> dict[str, object]:
    """Limits of the pixels of an image, of which the upper one is at most `MOST_PATCHES`."""
    least, most = _limits(processor)
    area, square = source.patch_size**2, source.merge**2
    if not 1 <= least <= most or most < area * square:
        raise _error("size with a shortest_edge and a longest_edge, in pixels", processor.size)
    patches = min(most // area, MOST_PATCHES) // square * square
    return {
        "patches": patches,
        "size": {
            "by": "whole_squares",
            "least": min(least, patches * area),
            "most": min(most, patches * area),
            "enlarges_narrow": True,
        },
    }


def _limits(processor: PatchProcessor) -> tuple[int, int]:
    """Fewest and most pixels of an image; 0 where the processor does not say."""
    sizes = processor.size or {}
    return (
        processor.min_pixels or sizes.get("shortest_edge") or 0,
        processor.max_pixels or sizes.get("longest_edge") or 0,
    )


def size_notes(config: EncoderConfig, folder: Path | None) -> tuple[str, ...]:
    """Warnings where images are reduced further than by the checkpoint's image processor.

    Raises what `patch_source` raises.
    """
    if not isinstance(config.input, GridInput):
        return ()
    _, most = _limits(read_patch_processor(config, folder))
    bound = MOST_PATCHES * config.input.patch_size**2
    if most <= bound:
        return ()
    return (
        f"Images are reduced to {bound:,} pixels, where the checkpoint allows {most:,}: attention "
        f"to more than {MOST_PATCHES:,} patches takes too much memory.",
    )


def _error(expected: str, got: object) -> OptionError:
    return OptionError(f"{PREPROCESSOR}: expected {expected}, got {got!s:.80}. Correct it.")
