"""The processor of LFM2-VL in transformers, without torchvision.

transformers has it with torchvision only. Here, stand-ins resize as torchvision does, by PyTorch's
kernel for bytes, whose values may differ from Pillow's by one level.
"""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerFast, image_processing_backends

MODULE = "transformers.models.lfm2_vl.image_processing_lfm2_vl"

STEPS = (
    *("downsample_factor", "do_image_splitting", "min_tiles", "max_tiles", "use_thumbnail"),
    *("min_image_tokens", "max_image_tokens", "encoder_patch_size", "tile_size"),
    *("max_pixels_tolerance", "do_resize", "do_rescale", "rescale_factor", "do_normalize"),
    *("image_mean", "image_std", "do_pad"),
)


def resized(images: Tensor, size: Any, **_: Any) -> Tensor:
    """Bytes `(..., C, H, W)` of another size."""
    size = (size.height, size.width)
    return F.interpolate(images, size, mode="bilinear", antialias=True)


def normalized(
    images: Tensor, _: bool, factor: float, __: bool, mean: list[float], std: list[float]
) -> Tensor:
    """Bytes `(..., C, H, W)` as numbers."""
    mean_C11, std_C11 = (torch.tensor(value)[:, None, None] for value in (mean, std))
    return (images.float() * factor - mean_C11) / std_C11


class ImageProcessor:
    """The image processor of a folder."""

    def __init__(self, folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2"):
                module = ModuleType(name)
                module.functional = None  # type: ignore[attr-defined]
                patch.setitem(sys.modules, name, module)
            kind = importlib.import_module(MODULE).Lfm2VlImageProcessor
        base: Any = image_processing_backends.TorchvisionBackend
        base.resize = staticmethod(resized)
        base.rescale_and_normalize = staticmethod(normalized)
        own = kind.__new__(kind)
        keys = json.loads((folder / "preprocessor_config.json").read_text())
        for name in STEPS:
            setattr(own, name, keys.get(name, getattr(kind, name)))
        tile = (own.tile_size // own.encoder_patch_size) ** 2 if own.do_image_splitting else 0
        self.model_input_names = kind.model_input_names
        own.max_num_patches = max(own.max_image_tokens * own.downsample_factor**2, tile)
        self._own = own
        self.use_thumbnail = own.use_thumbnail
        self.tile_size, self.downsample_factor = own.tile_size, own.downsample_factor
        self.encoder_patch_size = own.encoder_patch_size

    def fetch_images(self, images: Any) -> Any:
        """The images themselves, which are not paths."""
        return images

    def __call__(self, images: Any, **_: Any) -> Any:
        """Pixels and grids of images, or of lists of images."""
        flat = [image for part in images for image in (part if isinstance(part, list) else [part])]
        arrays = [torch.from_numpy(np.array(image.convert("RGB"))) for image in flat]
        return self._own._preprocess(
            [array.permute(2, 0, 1) for array in arrays],
            resample=Image.Resampling.BILINEAR,
            return_row_col_info=True,
            return_tensors="pt",
            disable_grouping=True,
            **{name: getattr(self._own, name) for name in STEPS},
        )


def processor(folder: Path) -> Any:
    """The processor of texts and images of a folder."""
    from transformers import Lfm2VlProcessor

    class OfImages(Lfm2VlProcessor):
        """With the image processor above."""

        def check_argument_for_proper_class(self, *_: Any) -> None: ...

    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(folder / "tokenizer.json")
    )
    return OfImages(ImageProcessor(folder), tokenizer)
