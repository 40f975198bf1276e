"""How images are cut into tiles, from a checkpoint's preprocessor_config.json."""

from collections.abc import Mapping
from pathlib import Path

from ortolan.export.errors import OptionError
from ortolan.export.source.image_processor import Processor, longest_edge
from ortolan.export.source.patches import patch_source
from ortolan.export.source.side_file import PREPROCESSOR, PROCESSOR, Keys, read_side
from ortolan.modeling.config import EncoderConfig, GridInput, PatchInput
from ortolan.runtime import limits
from ortolan.runtime.bundle.parts import ClosestShape, LongestSide, Oversized, Tiles, Wrapping

_NUMBERED = {
    "tile": "<fake_token_around_image><row_{row}_col_{column}>",
    "row": "\n",
    "rows": "\n",
    "whole": "<fake_token_around_image><global-img>",
    "end": "<fake_token_around_image>",
}

LFM2_VL = {
    "start": "<|image_start|>",
    "tile": "<|img_row_{row}_col_{column}|>",
    "rows": "<|img_thumbnail|>",
    "end": "<|image_end|>",
}
"""Texts of LFM2-VL, if its processor has `use_image_special_tokens`."""

TILE_TEXTS: Mapping[str, Mapping[str, str]] = {
    "idefics3": _NUMBERED,
    "internvl": {"start": "<img>", "end": "</img>"},
    "smolvlm": _NUMBERED,
}
"""Texts around the vectors of tiles, as a `model_type` learned them; others read no tiles."""

_QWEN = Wrapping(
    marker="<|vision_start|><|image_pad|><|vision_end|>",
    before="<|vision_start|>",
    after="<|vision_end|>",
)

WRAPPINGS: Mapping[str, Wrapping] = {
    "gemma3": Wrapping(
        marker="<start_of_image>",
        before="\n\n<start_of_image>",
        after="<end_of_image>\n\n",
    ),
    "qwen3_5": _QWEN,
    "qwen3_vl": _QWEN,
}
"""Texts around an image that is read as a whole, as a `model_type` learned them."""

ALWAYS_CUT = frozenset({"internvl"})
"""Types whose processor in transformers cuts images even if `crop_to_patches` is false."""


def tiles_of(
    config: EncoderConfig, processor: Processor | None, folder: Path | None
) -> Tiles | None:
    """How the images of an encoder are cut; `None` if it reads each as a whole, or sounds."""
    if processor is None or not isinstance(config.input, PatchInput | GridInput):
        return None
    if isinstance(config.input, GridInput):
        return _oversized(config, processor, folder)
    cut = tiles(processor, config.model_type)
    if cut is None:
        return None
    if isinstance(cut.grid, LongestSide):
        key, count = "size.longest_edge", (-(-cut.grid.pixels // min(config.input.image_size))) ** 2
    else:
        key, count = "max_patches", cut.grid.most
    most = limits.MAX_FEATURES
    if (vectors := (count + 1) * config.vectors) > most:
        raise OptionError(
            f"{PREPROCESSOR}: expected at most {most} vectors for an image, got {vectors}. Lower "
            f"{key}."
        )
    return cut


def _oversized(config: EncoderConfig, processor: Processor, folder: Path | None) -> Tiles | None:
    """How images are cut for an encoder that keeps their proportions."""
    if processor.max_pixels_tolerance is None or processor.max_image_tokens is None:
        return None
    source = patch_source(config, processor)
    side, least, most = processor.tile_size, processor.min_tiles, processor.max_tiles
    if side is None or least is None or most is None or not processor.use_thumbnail:
        raise _error("use_thumbnail must be true, as a model with tiles reads the whole image too")
    if not 1 <= least <= most <= limits.MAX_TILES:
        raise _error(
            f"min_tiles and max_tiles must be from 1 to {limits.MAX_TILES}, in this order (got "
            f"{least} and {most})"
        )
    vectors = most * source.length(side, side) + processor.max_image_tokens
    if processor.cuts and vectors > limits.MAX_FEATURES:
        raise _error(
            f"an image must have at most {limits.MAX_FEATURES} vectors (got {vectors}); lower "
            "max_tiles"
        )
    pixels = int(processor.max_image_tokens * source.square**2 * processor.max_pixels_tolerance)
    settings = {} if folder is None else read_side(folder / PROCESSOR, Keys)
    texts = {} if settings.get("use_image_special_tokens") is False else LFM2_VL
    grid = Oversized(pixels=pixels, tile=side, least=least, most=most)
    return Tiles(grid=grid, split=bool(processor.cuts), **texts)


def tiles(processor: Processor, model_type: str) -> Tiles | None:
    """How images are cut into tiles; None for a model that reads no tiles."""
    grid, texts = _grid(processor), TILE_TEXTS.get(model_type)
    if texts is None:
        return None
    if grid is None:
        raise _error(f"image_processor_type must cut images, as {model_type} reads tiles")
    if not processor.do_resize:
        raise _error("do_resize must be true where images are cut into tiles")
    return Tiles(grid=grid, split=bool(processor.cuts) or model_type in ALWAYS_CUT, **texts)


def _grid(processor: Processor) -> LongestSide | ClosestShape | None:
    """How many tiles an image has."""
    if processor.max_image_size is not None:
        pixels = longest_edge("size", processor.size)
        if pixels > limits.MAX_TILES_SIDE:
            raise _error(
                f"size must have a longest_edge of at most {limits.MAX_TILES_SIDE} (got {pixels})"
            )
        return LongestSide(pixels=pixels)
    if processor.min_patches is None or processor.max_patches is None:
        return None
    least, most = processor.min_patches, processor.max_patches
    if not 1 <= least <= most <= limits.MAX_TILES:
        raise _error(
            f"min_patches and max_patches must be from 1 to {limits.MAX_TILES}, in this order (got "
            f"{least} and {most})"
        )
    return ClosestShape(least=least, most=most)


def _error(wrong: str) -> OptionError:
    return OptionError(f"{PREPROCESSOR}: {wrong}. Correct it.")
