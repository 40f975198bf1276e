"""How an image of one size becomes pixels."""

import math

import msgspec

from ortolan.export.source.image_processor import (
    BICUBIC,
    BILINEAR,
    Lengths,
    Processor,
    channel_numbers,
    longest_edge,
    refused,
    resampling,
    side_of,
)
from ortolan.modeling.config import PatchInput
from ortolan.runtime.bundle.image_sources import Fit, ImageSource

CROP_BELOW = 384
"""Shortest edge below which a processor with `crop_pct` crops; larger images are distorted."""


def image_source(source: PatchInput, processor: Processor) -> ImageSource:
    """The input of an image encoder."""
    fit = _fit(processor)
    _check_size(processor, fit, source.image_size)
    resample = resampling(processor)
    mean, std = (0.0,) * source.channels, (1.0,) * source.channels
    if processor.do_normalize:
        mean = channel_numbers("image_mean", processor.image_mean, source.channels)
        std = channel_numbers("image_std", processor.image_std, source.channels)
    scale = processor.rescale_factor if processor.do_rescale else 1.0
    if processor.rescales_first:
        _check_floats(processor)
    if min(*std, scale) <= 0 or not math.isfinite(scale):
        raise refused("positive rescale_factor and image_std", f"{scale} and {std}")
    return ImageSource(
        channels=source.channels,
        height=source.image_size[0],
        width=source.image_size[1],
        mean=mean,
        std=std,
        scale=scale,
        resample=resample,
        rounding="none" if processor.rescales_first else None,
        fit=None if fit == Fit(resize=source.image_size) else fit,
        background="white" if processor.do_convert_rgb and source.channels == 3 else None,
    )


def processed_size(processor: Processor) -> tuple[int, int] | None:
    """Height and width of every image after the steps of a processor.

    None if they do not say: then images must have the size of the model.
    """
    fit = _fit(processor)
    match fit.crop or (None if fit.inside else fit.resize):
        case (height, width) if not fit.pad:
            return height, width
        case _:
            return None


def _check_floats(processor: Processor) -> None:
    """Raise OptionError for steps that PyTorch computes differently from Pillow on floats."""
    if processor.do_center_crop or processor.do_pad or not processor.do_rescale:
        raise refused(
            "an image processor that rescales, resizes and normalizes, in this order",
            "do_center_crop, do_pad, or no do_rescale",
        )
    if processor.resample not in (BILINEAR, BICUBIC):
        raise refused(f"resample {BILINEAR} or {BICUBIC}", f"{processor.resample}")


def _fit(processor: Processor) -> Fit:
    """The steps that give an image, or a tile of it, its size."""
    if processor.max_image_size is not None:
        return Fit(resize=(longest_edge("max_image_size", processor.max_image_size),) * 2)
    if processor.max_patches is not None:
        return Fit(resize=_size("size", processor.size))
    crop = _size("crop_size", processor.crop_size) if processor.do_center_crop else None
    if not processor.do_resize:
        return Fit(crop=crop, pad=processor.do_pad)
    fit = _resize(processor)
    if processor.crop_pct is None:
        return msgspec.structs.replace(fit, crop=crop, pad=processor.do_pad)
    edge = fit.resize
    if not isinstance(edge, int) or crop is not None or not 0 < processor.crop_pct <= 1:
        raise refused(
            "crop_pct above 0 and up to 1, with a shortest_edge and without do_center_crop",
            f"{processor.crop_pct} and {processor.size}",
        )
    if edge >= CROP_BELOW:
        return Fit(resize=(edge, edge), pad=processor.do_pad)
    return Fit(
        resize=side_of("crop_pct", int(edge / processor.crop_pct)),
        crop=(edge, edge),
        pad=processor.do_pad,
    )


def _resize(processor: Processor) -> Fit:
    """The first step."""
    match processor.size:
        case {"shortest_edge": int(edge), **rest} if not rest:
            return Fit(resize=side_of("size", edge))
        case {"max_height": int(height), "max_width": int(width), **rest} if not rest:
            return Fit(resize=(side_of("size", height), side_of("size", width)), inside=True)
        case int(edge) if not processor.default_to_square:
            return Fit(resize=side_of("size", edge))
        case size:
            return Fit(resize=_size("size", size))


def _size(key: str, lengths: Lengths | None) -> tuple[int, int]:
    """Height and width under a key."""
    match lengths:
        case int(side):
            return (side_of(key, side),) * 2
        case (int(height), int(width)):
            return side_of(key, height), side_of(key, width)
        case {"height": int(height), "width": int(width), **rest} if not rest:
            return side_of(key, height), side_of(key, width)
        case _:
            raise refused(f"{key} with a height and a width, or another known form", f"{lengths}")


def _check_size(processor: Processor, fit: Fit, size: tuple[int, int]) -> None:
    """Raise OptionError if images get another size than the model's."""
    height, width = size
    wanted = f"{height} x {width} pixels, as in config.json"
    if fit.pad and _size("pad_size", processor.pad_size) != size:
        raise refused(f"pad_size of {wanted}", f"{processor.pad_size}")
    last = fit.crop if fit.crop or fit.inside or not fit.resize else fit.resize
    if isinstance(last, int) or (last is None and not fit.pad and fit.resize):
        raise refused(f"images of {wanted}, by do_center_crop or do_pad", f"size {processor.size}")
    if last is None or last == size or (fit.pad and last[0] <= height and last[1] <= width):
        return
    raise refused(f"images of {wanted}", f"{last[0]} x {last[1]}")
