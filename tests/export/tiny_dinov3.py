"""A tiny DINOv3, and the pixels that its image processor makes of a picture."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from tests.modeling.tiny_encoders import IMAGES
from tests.tiny.encoders import DINOV3
from torch import Tensor

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

SIDE: int = DINOV3["image_size"]

PACKAGE = "sentence_transformers.models."


def write(folder: Path, *, pooled: bool = False) -> Any:
    """Save the model with its image processor, and return it.

    Args:
        folder: of the checkpoint.
        pooled: add modules of sentence-transformers that embed an image by its class token.
    """
    reference = IMAGES["dinov3"].write(folder)
    size = {"height": SIDE, "width": SIDE}
    processor = {"image_processor_type": "DINOv3ViTImageProcessorFast", "size": size}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    if pooled:
        kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
        modules = [
            {"idx": number, "name": str(number), "path": path, "type": f"{PACKAGE}{kind}"}
            for number, (path, kind) in enumerate(kinds.items())
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return reference


def pixels(picture: bytes) -> Tensor:
    """Pixels `(C, H, W)` of a file, by the steps of the processor, which needs torchvision.

    torchvision resizes floats with this function of PyTorch.
    """
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    return normalized(torch.tensor(np.asarray(image)), SIDE)


def normalized(values_HWC: Tensor, side: int, *, mode: str = "bilinear") -> Tensor:
    """Rescale, resize and normalize: `(C, side, side)`."""
    scaled = values_HWC.permute(2, 0, 1) * (1 / 255)
    sized = F.interpolate(scaled[None], (side, side), mode=mode, antialias=True)[0]
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (MEAN, STD))
    return (sized - mean) / std
