"""How an image becomes pixels, from a checkpoint's preprocessor_config.json.

The keys are those of Hugging Face's image processors, and absent ones have the defaults of the
processor's class. A key that no such processor of one image knows is an error: it may be a step.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ortolan.export.errors import OptionError
from ortolan.export.source.side_file import Keys, read_side
from ortolan.modeling.config import PatchInput
from ortolan.runtime import limits
from ortolan.runtime.bundle.image_sources import Filter, Fit, ImageSource

PREPROCESSOR = "preprocessor_config.json"

PROCESSOR = "processor_config.json"
"""Newer file that holds the image processor under the key `image_processor`."""

BYTES = 1 / 255

RESAMPLES: tuple[Filter, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Resampling filters in the order of Pillow's numbers."""

LANCZOS, BILINEAR, BICUBIC = 1, 2, 3

STEPS = (
    *("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_pad", "do_convert_rgb"),
    *("do_image_splitting", "crop_to_patches"),
)
"""Steps that a bundle does."""

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

OF_SOME = (
    *("crop_pct", "do_image_splitting", "max_image_size"),
    *("crop_to_patches", "min_patches", "max_patches"),
)
"""Keys that only the processors with a default for them know."""

CROP_BELOW = 384
"""Shortest edge below which a processor with `crop_pct` crops; larger images are distorted."""

Numbers = float | tuple[float, ...]
Lengths = int | tuple[int, ...] | dict[str, int | None]


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that are read, with the defaults that image processors share.

    `size` and `crop_size` are None where they are those of the model. `rescales_first` is no key,
    but belongs to the class: values are rescaled before the image is resized, and so not rounded.
    """

    size: Lengths | None = None
    crop_size: Lengths | None = None
    pad_size: Lengths | None = None
    resample: int = BICUBIC
    do_resize: bool = True
    do_center_crop: bool = False
    do_rescale: bool = True
    do_normalize: bool = True
    do_pad: bool = False
    do_convert_rgb: bool = False
    rescale_factor: float = BYTES
    image_mean: Numbers = 0.5
    image_std: Numbers = 0.5
    do_image_splitting: bool | None = None
    max_image_size: Lengths | None = None
    crop_to_patches: bool | None = None
    min_patches: int | None = None
    max_patches: int | None = None
    crop_pct: float | None = None
    default_to_square: bool = True
    rescales_first: bool = False

    @property
    def cuts(self) -> bool | None:
        """Whether images are cut into tiles; None for a processor that cannot."""
        return self.crop_to_patches if self.do_image_splitting is None else self.do_image_splitting


KEYS = frozenset(Processor.__struct_fields__) - {"rescales_first"}
"""Keys of a file that are read."""

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
"""Defaults of the image processors of transformers, by the start of their class names."""

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
    "siglip": "Siglip",
    "siglip_vision_model": "Siglip",
    "smolvlm": "SmolVLM",
}
"""Image processor of a `model_type` whose file names none; of other models, `ViT`."""

SUFFIXES = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor")


def image_source(config: PatchInput, folder: Path | None, model_type: str) -> ImageSource:
    """The input of an image encoder."""
    processor = read_processor(config, folder, model_type)
    fit = _fit(processor)
    _check_size(processor, fit, config.image_size)
    if not 0 <= processor.resample < len(RESAMPLES):
        raise _error(f"resample from 0 to {len(RESAMPLES) - 1}", f"{processor.resample}")
    mean, std = (0.0,) * config.channels, (1.0,) * config.channels
    if processor.do_normalize:
        mean = channel_numbers("image_mean", processor.image_mean, config.channels)
        std = channel_numbers("image_std", processor.image_std, config.channels)
    scale = processor.rescale_factor if processor.do_rescale else 1.0
    if processor.rescales_first:
        _check_floats(processor)
    if min(*std, scale) <= 0 or not math.isfinite(scale):
        raise _error("positive rescale_factor and image_std", f"{scale} and {std}")
    return ImageSource(
        channels=config.channels,
        height=config.image_size[0],
        width=config.image_size[1],
        mean=mean,
        std=std,
        scale=scale,
        resample=RESAMPLES[processor.resample],
        rounding="none" if processor.rescales_first else None,
        fit=None if fit == Fit(resize=config.image_size) else fit,
        background="white" if processor.do_convert_rgb and config.channels == 3 else None,
    )


def processed_size(
    config: PatchInput, folder: Path | None, model_type: str
) -> tuple[int, int] | None:
    """Height and width of every image after the steps of a checkpoint's image processor.

    None if they do not say: then images must have the size of the model. Same arguments and errors
    as `image_source`.
    """
    fit = _fit(read_processor(config, folder, model_type))
    match fit.crop or (None if fit.inside else fit.resize):
        case (height, width) if not fit.pad:
            return height, width
        case _:
            return None


def _check_floats(processor: Processor) -> None:
    """Raise OptionError for steps that PyTorch computes differently from Pillow on floats."""
    if processor.do_center_crop or processor.do_pad or not processor.do_rescale:
        raise _error(
            "an image processor that rescales, resizes and normalizes, in this order",
            "do_center_crop, do_pad, or no do_rescale",
        )
    if processor.resample not in (BILINEAR, BICUBIC):
        raise _error(f"resample {BILINEAR} or {BICUBIC}", f"{processor.resample}")


def read_processor(config: PatchInput, folder: Path | None, model_type: str) -> Processor:
    """The keys of a checkpoint's image processor over its defaults."""
    values = {} if folder is None else processor_values(folder)
    default = PROCESSOR_OF.get(model_type, "ViT")
    processor = _processor(values, default)
    if processor.cuts and PROCESSORS[default].cuts is None:
        raise _error("whole images", f"tiles, which {model_type} does not read")
    if values.keys().isdisjoint(("size", "image_processor_type", "feature_extractor_type")):
        return _resized(processor, config.image_size, crops="crop_size" in values)
    return processor


def processor_values(folder: Path) -> dict[str, object]:
    """The keys of a checkpoint's image processor that have a value."""
    values = processor_keys(folder, "image_processor")
    return {name: value for name, value in values.items() if value is not None}


def processor_keys(folder: Path, part: str) -> Keys:
    """The keys of one part of a processor; none without a file.

    Newer checkpoints have them in processor_config.json, under the name of the part.
    """
    nested = read_side(folder / PROCESSOR, dict[str, Any]).get(part)
    own: Keys | None = nested if isinstance(nested, dict) else None
    return read_side(folder / PREPROCESSOR, Keys) if own is None else own


def reads_image_tokens(folder: Path) -> bool:
    """Whether a checkpoint's processor writes tokens around the vectors of images, by default."""
    return read_side(folder / PROCESSOR, Keys).get("use_image_special_tokens") is not False


def _processor(values: Mapping[str, object], default: str) -> Processor:
    """The keys of a file over the defaults of its class."""
    name = values.get("image_processor_type") or values.get("feature_extractor_type") or default
    named = str(name)
    suffix = next((suffix for suffix in SUFFIXES if named.endswith(suffix)), "")
    defaults = PROCESSORS.get(named.removesuffix(suffix))
    if defaults is None:
        raise _error(
            f"image_processor_type to begin with one of {', '.join(PROCESSORS)}", f"{named!r:.80}"
        )
    known = {*KEYS, *INERT}
    known.difference_update(key for key in OF_SOME if getattr(defaults, key) is None)
    unknown = [key for key, value in values.items() if key not in known and value is not False]
    if unknown:
        raise _error(f"no steps but {', '.join(STEPS)}", ", ".join(sorted(unknown))[:200])
    given = {key: values[key] for key in KEYS if key in values}
    try:
        return msgspec.convert(msgspec.structs.asdict(defaults) | given, type=Processor)
    except msgspec.ValidationError as error:
        raise _error("a JSON object of an image processor", str(error)[:200]) from error


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
        raise _error(
            "crop_pct above 0 and up to 1, with a shortest_edge and without do_center_crop",
            f"{processor.crop_pct} and {processor.size}",
        )
    if edge >= CROP_BELOW:
        return Fit(resize=(edge, edge), pad=processor.do_pad)
    return Fit(
        resize=_side("crop_pct", int(edge / processor.crop_pct)),
        crop=(edge, edge),
        pad=processor.do_pad,
    )


def longest_edge(key: str, lengths: Lengths | None) -> int:
    """The side under a key that has only the longer one."""
    match lengths:
        case {"longest_edge": int(edge), **rest} if not rest:
            return _side(key, edge)
        case _:
            raise _error(f"{key} with a longest_edge", f"{lengths}")


def _resize(processor: Processor) -> Fit:
    """The first step."""
    match processor.size:
        case {"shortest_edge": int(edge), **rest} if not rest:
            return Fit(resize=_side("size", edge))
        case {"max_height": int(height), "max_width": int(width), **rest} if not rest:
            return Fit(resize=(_side("size", height), _side("size", width)), inside=True)
        case int(edge) if not processor.default_to_square:
            return Fit(resize=_side("size", edge))
        case size:
            return Fit(resize=_size("size", size))


def _size(key: str, lengths: Lengths | None) -> tuple[int, int]:
    """Height and width under a key."""
    match lengths:
        case int(side):
            return (_side(key, side),) * 2
        case (int(height), int(width)):
            return _side(key, height), _side(key, width)
        case {"height": int(height), "width": int(width), **rest} if not rest:
            return _side(key, height), _side(key, width)
        case _:
            raise _error(f"{key} with a height and a width, or another known form", f"{lengths}")


def _side(key: str, side: int) -> int:
    if not 0 < side <= limits.MAX_IMAGE_SIDE:
        raise _error(f"{key} from 1 to {limits.MAX_IMAGE_SIDE} pixels", f"{side}")
    return side


def _check_size(processor: Processor, fit: Fit, size: tuple[int, int]) -> None:
    """Raise OptionError if images get another size than the model's."""
    height, width = size
    wanted = f"{height} x {width} pixels, as in config.json"
    if fit.pad and _size("pad_size", processor.pad_size) != size:
        raise _error(f"pad_size of {wanted}", f"{processor.pad_size}")
    last = fit.crop if fit.crop or fit.inside or not fit.resize else fit.resize
    if isinstance(last, int) or (last is None and not fit.pad and fit.resize):
        raise _error(f"images of {wanted}, by do_center_crop or do_pad", f"size {processor.size}")
    if last is None or last == size or (fit.pad and last[0] <= height and last[1] <= width):
        return
    raise _error(f"images of {wanted}", f"{last[0]} x {last[1]}")


def channel_numbers(name: str, value: Numbers, channels: int) -> tuple[float, ...]:
    """One number for each channel."""
    numbers = value if isinstance(value, tuple) else (value,) * channels
    if len(numbers) != channels or not all(map(math.isfinite, numbers)):
        raise _error(f"{name} of {channels} numbers, one for each channel", f"{numbers}")
    return tuple(map(float, numbers))


def _error(expected: str, got: str) -> OptionError:
    return OptionError(f"{PREPROCESSOR}: expected {expected}, got {got}. Correct or remove it.")
