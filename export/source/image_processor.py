"""A checkpoint's image processor: how an image becomes pixels, patches or tiles.

The keys of preprocessor_config.json are those of Hugging Face's image processors, and absent ones
have the defaults of the processor's class. A key that no such processor of one image knows is an
error: it may be a step.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ortolan.export.errors import OptionError
from ortolan.export.source.side_file import PREPROCESSOR, processor_keys
from ortolan.modeling.config import GridInput, PatchInput
from ortolan.runtime import limits
from ortolan.runtime.bundle.image_sources import Filter

BYTES = 1 / 255

RESAMPLES: tuple[Filter, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Resampling filters in the order of Pillow's numbers."""

LANCZOS, BILINEAR, BICUBIC = 1, 2, 3

INERT = frozenset(
    {
        *("image_processor_type", "feature_extractor_type", "processor_class", "backend"),
        *("data_format", "input_data_format", "device", "return_tensors", "disable_grouping"),
        *("image_seq_length", "model_input_names", "_valid_processor_keys"),
        *("return_row_col_info", "video_sampling"),
        # do_pan_and_scan, without which these do nothing, is refused
        *("pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops"),
        "pan_and_scan_min_ratio_to_activate",
    }
)
"""Keys that do not change the pixels of a single image."""

OF_ONE_SIZE = frozenset(
    ("size", "crop_size", "pad_size", "do_center_crop", "do_pad", "default_to_square")
)
"""Keys of processors that give every image one size."""

ON = ("do_resize", "do_rescale", "do_normalize")
"""Steps that are always done to images that keep their proportions."""

Numbers = float | tuple[float, ...]
Lengths = int | tuple[int, ...] | dict[str, int | None]


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that are read, with the defaults that image processors share.

    Those of one size come first, then those of tiles, then those of images that keep their
    proportions. A key whose default is None is known only to classes with another default.
    `size` and `crop_size` are None where they are those of the model. `rescales_first` is no key,
    but belongs to the class: values are rescaled before the image is resized, and so not rounded.
    """

    resample: int = BICUBIC
    rescale_factor: float = BYTES
    image_mean: Numbers = 0.5
    image_std: Numbers = 0.5
    do_resize: bool = True
    do_rescale: bool = True
    do_normalize: bool = True
    do_convert_rgb: bool = False
    size: Lengths | None = None
    crop_size: Lengths | None = None
    pad_size: Lengths | None = None
    do_center_crop: bool = False
    do_pad: bool = False
    default_to_square: bool = True
    crop_pct: float | None = None
    do_image_splitting: bool | None = None
    max_image_size: Lengths | None = None
    crop_to_patches: bool | None = None
    min_patches: int | None = None
    max_patches: int | None = None
    patch_size: int | None = None
    merge_size: int | None = None
    temporal_patch_size: int | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    encoder_patch_size: int | None = None
    downsample_factor: int | None = None
    max_num_patches: int | None = None
    min_image_tokens: int | None = None
    max_image_tokens: int | None = None
    tile_size: int | None = None
    min_tiles: int | None = None
    max_tiles: int | None = None
    max_pixels_tolerance: float | None = None
    use_thumbnail: bool | None = None
    rescales_first: bool = False

    @property
    def cuts(self) -> bool | None:
        """Whether images are cut into tiles; None for a processor that cannot."""
        if (self.min_tiles, self.max_tiles) == (1, 1):
            return False
        return self.crop_to_patches if self.do_image_splitting is None else self.do_image_splitting


CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

_CLIP = Processor(
    image_mean=CLIP_MEAN,
    image_std=CLIP_STD,
    size={"shortest_edge": 224},
    crop_size={"height": 224, "width": 224},
    do_center_crop=True,
    do_convert_rgb=True,
    default_to_square=False,
)

_TILED = Processor(
    size={"longest_edge": 4 * 364},
    max_image_size={"longest_edge": 364},
    resample=LANCZOS,
    do_convert_rgb=True,
    do_image_splitting=True,
    do_pad=True,  # to the largest of a batch, and tiles are of one size
)

PROCESSORS: Mapping[str, Processor] = {
    "ViT": Processor(resample=BILINEAR, size={"height": 224, "width": 224}),
    "CLIP": _CLIP,
    "Bit": _CLIP,
    "ConvNext": Processor(size={"shortest_edge": 384}, crop_pct=224 / 256, default_to_square=False),
    "DeiT": Processor(
        size={"height": 256, "width": 256},
        crop_size={"height": 224, "width": 224},
        do_center_crop=True,
    ),
    "Gemma3": Processor(resample=BILINEAR, size={"height": 224, "width": 224}, do_convert_rgb=True),
    "Siglip": Processor(
        size={"height": 224, "width": 224}, do_convert_rgb=True, default_to_square=False
    ),
    "DINOv3ViT": Processor(
        resample=BILINEAR,
        image_mean=(0.485, 0.456, 0.406),
        image_std=(0.229, 0.224, 0.225),
        size={"height": 224, "width": 224},
        rescales_first=True,
    ),
    "GotOcr2": Processor(
        image_mean=CLIP_MEAN,
        image_std=CLIP_STD,
        size={"height": 384, "width": 384},
        do_convert_rgb=True,
        crop_to_patches=False,
        min_patches=1,
        max_patches=12,
    ),
    "Idefics3": _TILED,
    "SmolVLM": _TILED,
}
"""Defaults of the image processors of transformers that give every image one size, by the start of
their class names."""

_STANDARD = 0.5
"""Mean and standard deviation of each channel: transformers' `IMAGENET_STANDARD_*`."""

PROPORTIONAL: Mapping[str, Processor] = {
    "Lfm2Vl": Processor(
        resample=BILINEAR,
        image_mean=_STANDARD,
        image_std=_STANDARD,
        encoder_patch_size=16,
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
    "Qwen2VL": Processor(
        patch_size=14,
        merge_size=2,
        temporal_patch_size=2,
        image_mean=CLIP_MEAN,
        image_std=CLIP_STD,
        do_convert_rgb=True,
        size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    ),
    "Siglip2": Processor(resample=BILINEAR, patch_size=16, max_num_patches=256),
}
"""Those that keep the proportions of an image."""

DERIVED = frozenset(("size", "do_pad", "max_num_patches"))
"""Keys of LFM2-VL that change nothing: sizes follow from others, and no image is padded."""

OLDER_SIZES = frozenset(("min_pixels", "max_pixels"))
"""Older names of the limits in the `size` of a processor that keeps proportions."""

PROCESSOR_OF: Mapping[str, str] = {
    "clip": "CLIP",
    "clip_vision_model": "CLIP",
    "deit": "DeiT",
    "dinov2": "Bit",
    "dinov2_with_registers": "Bit",
    "dinov3_vit": "DINOv3ViT",
    "gemma3": "Gemma3",
    "idefics3": "Idefics3",
    "internvl": "GotOcr2",
    "lfm2_vl": "Lfm2Vl",
    "qwen3_5": "Qwen2VL",
    "qwen3_vl": "Qwen2VL",
    "siglip": "Siglip",
    "siglip_vision_model": "Siglip",
    "smolvlm": "SmolVLM",
}
"""Image processor of a `model_type` whose file names none; of other models, `ViT`, or
`Siglip2` where images keep their proportions."""

SUFFIXES = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor")


def read_processor(
    source: PatchInput | GridInput, folder: Path | None, model_type: str
) -> Processor:
    """The keys of a checkpoint's image processor over its defaults."""
    keys = {} if folder is None else processor_keys(folder, "image_processor")
    values = {name: value for name, value in keys.items() if value is not None}
    classes, other = (
        (PROPORTIONAL, "Siglip2") if isinstance(source, GridInput) else (PROCESSORS, "ViT")
    )
    default = PROCESSOR_OF.get(model_type, other)
    named = str(
        values.get("image_processor_type") or values.get("feature_extractor_type") or default
    )
    suffix = next((suffix for suffix in SUFFIXES if named.endswith(suffix)), "")
    defaults = classes.get(name := named.removesuffix(suffix))
    if defaults is None:
        raise refused(
            f"image_processor_type to begin with one of {', '.join(classes)}", f"{named!r:.80}"
        )
    read = _known(defaults) & values.keys()
    inert = DERIVED | INERT if defaults.max_image_tokens is not None else INERT
    unknown = [key for key in values.keys() - read - inert if values[key] is not False]
    if unknown:
        raise refused(f"known keys of {name}ImageProcessor", ", ".join(sorted(unknown))[:200])
    implied = _of_model(defaults, source) if isinstance(source, GridInput) else {}
    given = implied | {key: values[key] for key in read}
    try:
        processor = msgspec.convert(msgspec.structs.asdict(defaults) | given, type=Processor)
    except msgspec.ValidationError as error:
        raise refused("a JSON object of an image processor", str(error)[:200]) from error
    if isinstance(source, GridInput):
        off = [key for key in ON if values.get(key) is False]
        if off:
            raise refused(f"{off[0]} true", "false")
        return processor
    if processor.cuts and classes[default].cuts is None:
        raise refused("whole images", f"tiles, which {model_type} does not read")
    if values.keys().isdisjoint(("size", "image_processor_type", "feature_extractor_type")):
        return _resized(processor, source.image_size, crops="crop_size" in values)
    return processor


def _known(defaults: Processor) -> set[str]:
    """Keys that a class reads."""
    own = {name for name, value in msgspec.structs.asdict(defaults).items() if value is not None}
    own.discard("rescales_first")
    if defaults.patch_size is None and defaults.encoder_patch_size is None:
        return own | OF_ONE_SIZE
    own -= OF_ONE_SIZE
    return own if defaults.size is None else own | OLDER_SIZES | {"size"}


def _of_model(defaults: Processor, source: GridInput) -> dict[str, object]:
    """Defaults that depend on the patches of a model."""
    size = source.patch_size
    if defaults.encoder_patch_size is None:
        return {"patch_size": size}
    tile = (defaults.tile_size or 0) // defaults.encoder_patch_size * size
    return {"encoder_patch_size": size, "downsample_factor": source.merge, "tile_size": tile}


def _resized(processor: Processor, size: tuple[int, int], *, crops: bool) -> Processor:
    """The same steps for images of another size; `crops` keeps the size of the crop."""
    if processor.max_image_size is not None:
        tile = min(size)
        return msgspec.structs.replace(
            processor, size={"longest_edge": 4 * tile}, max_image_size={"longest_edge": tile}
        )
    whole: Lengths = {"height": size[0], "width": size[1]}
    keeps_shape = isinstance(processor.size, dict) and "shortest_edge" in processor.size
    return msgspec.structs.replace(
        processor,
        size={"shortest_edge": min(size)} if keeps_shape else whole,
        crop_size=processor.crop_size if crops or processor.crop_size is None else whole,
    )


def resampling(processor: Processor) -> Filter:
    """The filter that resizes images."""
    if not 0 <= processor.resample < len(RESAMPLES):
        raise refused(f"resample from 0 to {len(RESAMPLES) - 1}", f"{processor.resample}")
    return RESAMPLES[processor.resample]


def channel_numbers(name: str, value: Numbers, channels: int) -> tuple[float, ...]:
    """One number for each channel."""
    numbers = value if isinstance(value, tuple) else (value,) * channels
    if len(numbers) != channels or not all(map(math.isfinite, numbers)):
        raise refused(f"{name} of {channels} numbers, one for each channel", f"{numbers}")
    return tuple(map(float, numbers))


def longest_edge(key: str, lengths: Lengths | None) -> int:
    """The side under a key that has only the longer one."""
    match lengths:
        case {"longest_edge": int(edge), **rest} if not rest:
            return side_of(key, edge)
        case _:
            raise refused(f"{key} with a longest_edge", f"{lengths}")


def side_of(key: str, side: int) -> int:
    """A side of an image, if it is in bounds."""
    if not 0 < side <= limits.MAX_IMAGE_SIDE:
        raise refused(f"{key} from 1 to {limits.MAX_IMAGE_SIDE} pixels", f"{side}")
    return side


def refused(expected: str, got: object) -> OptionError:
    """The error for an image processor that cannot be reproduced."""
    return OptionError(f"{PREPROCESSOR}: expected {expected}, got {got}. Correct or remove it.")
