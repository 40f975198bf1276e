"""How an image that keeps its proportions becomes patches."""

import msgspec

from ortolan.export.errors import OptionError
from ortolan.export.source.image_processor import (
    Processor,
    channel_numbers,
    refused,
    resampling,
)
from ortolan.export.source.side_file import PREPROCESSOR
from ortolan.modeling.config import EncoderConfig, GridInput, GridPositions
from ortolan.runtime.bundle.image_sources import PatchSource

MOST_PATCHES = 1 << 12
"""Patches of an image whose processor allows more: attention to all of them takes memory by their
square, 1 GiB in Qwen3-VL."""


def patch_source(config: EncoderConfig, processor: Processor) -> PatchSource:
    """The input of an encoder of images that keep their proportions."""
    source = config.input
    if not isinstance(source, GridInput):
        raise TypeError("expected an encoder of patches")
    own = (
        processor.patch_size or processor.encoder_patch_size,
        processor.merge_size or processor.downsample_factor or 1,
        processor.temporal_patch_size or 1,
    )
    if own != (source.patch_size, source.merge, source.frames):
        raise refused(
            f"patches of {source.patch_size} pixels and {source.frames} frames in squares of "
            f"{source.merge} by {source.merge}, as in config.json",
            f"{own[0]}, {own[2]} and {own[1]}",
        )
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
        "resample": resampling(processor),
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


def _sizes(processor: Processor, source: GridInput) -> dict[str, object]:
    """The most patches of an image, and the rule that chooses its size."""
    if processor.size is not None:
        return _pixels(processor, source)
    least, most = processor.min_image_tokens, processor.max_image_tokens
    if least is None or most is None:
        return {"patches": processor.max_num_patches, "size": {"by": "most_patches"}}
    square = source.patch_size * source.merge
    side = processor.tile_size or 0
    if side % square:
        raise refused(f"tile_size to be a multiple of {square}", side)
    of_tile = (side // source.patch_size) ** 2 if processor.cuts else 0
    return {
        "patches": max(most * source.merge**2, of_tile),
        "size": {
            "by": "whole_squares",
            "least": least * square**2,
            "most": most * square**2,
        },
    }


def _pixels(processor: Processor, source: GridInput) -> dict[str, object]:
    """Limits of the pixels of an image, of which the upper one is at most `MOST_PATCHES`."""
    least, most = _limits(processor)
    area, square = source.patch_size**2, source.merge**2
    if not 1 <= least <= most or most < area * square:
        raise refused("size with a shortest_edge and a longest_edge, in pixels", processor.size)
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


def _limits(processor: Processor) -> tuple[int, int]:
    """Fewest and most pixels of an image; 0 where the processor does not say."""
    sizes = processor.size if isinstance(processor.size, dict) else {}
    return (
        processor.min_pixels or sizes.get("shortest_edge") or 0,
        processor.max_pixels or sizes.get("longest_edge") or 0,
    )


def size_notes(config: EncoderConfig, processor: Processor | None) -> tuple[str, ...]:
    """Warnings where images are reduced further than by the checkpoint's image processor."""
    if processor is None or not isinstance(config.input, GridInput):
        return ()
    _, most = _limits(processor)
    bound = MOST_PATCHES * config.input.patch_size**2
    if most <= bound:
        return ()
    return (
        f"Images are reduced to {bound:,} pixels, where the checkpoint allows {most:,}: attention "
        f"to more than {MOST_PATCHES:,} patches takes too much memory.",
    )
