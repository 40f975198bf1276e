"""Encoders of images, from image files to outputs."""

import io
import json
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from PIL import Image
from tests.cases import FP32, QUICK, Case, low_bit
from tests.cases.encoders import ENCODES, scores
from tests.export import tiny_dinov3
from tests.modeling.tiny_encoders import IMAGES, THREE_LABELS, EncoderCase
from tests.tiny.encoders import CLIP, CLIP_VISION, DEIT, DINOV2, DINOV2_REGISTERS, VIT

SQUARE = {"height": 8, "width": 8}


def picture(height: int, width: int) -> bytes:
    """A file of random pixels."""
    values = np.random.default_rng(height).integers(0, 256, (height, width, 3)).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "PNG")
    return stream.getvalue()


PICTURES = {f"{size[0]} by {size[1]}": picture(*size) for size in ((31, 17), (9, 12), (8, 8))}


def outputs(model: Any, files: Sequence[bytes]) -> list[Any]:
    match model.manifest.output_kind.name:
        case "labels":
            return scores(model, files)
        case "embedding":
            return [*model.embed(list(files))]
        case _:
            return [*model.states(list(files))]


def processor(kind: str, values: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(transformers, f"{kind}ImageProcessorPil")(**values)


def write_encoder(encoder: EncoderCase, kind: str, values: dict[str, Any], folder: Path) -> None:
    encoder.write(folder)
    processor(kind, values).save_pretrained(str(folder))


def by_processor(
    encoder: EncoderCase, kind: str, values: dict[str, Any], folder: Path, files: Sequence[bytes]
) -> list[Any]:
    images = [Image.open(io.BytesIO(file)) for file in files]
    pixels = torch.tensor(
        processor(kind, values)(images=images, return_tensors="np")["pixel_values"]
    )
    return said(encoder.read(folder), pixels)


def said(model: Any, pixels: torch.Tensor) -> list[Any]:
    """Outputs of transformers, as a bundle returns them."""
    with torch.inference_mode():
        if type(model).__name__ == "CLIPModel":
            features = model.get_image_features(pixel_values=pixels)
            features = getattr(features, "pooler_output", features)
            return [*F.normalize(features, dim=-1).numpy()]
        output = model(pixel_values=pixels)
    key = next(k for k in ("logits", "image_embeds", "last_hidden_state") if k in output)
    if key != "logits":
        return [*output[key].numpy()]
    names = model.config.id2label
    rows = [zip(names.values(), row.tolist(), strict=True) for row in output[key].softmax(-1)]
    return [dict(sorted(row, key=lambda pair: -pair[1])) for row in rows]


def of_processor(
    name: str, encoder: EncoderCase, kind: str, values: dict[str, Any], **more: Any
) -> Case:
    return Case(
        name=f"image {name}",
        write=partial(write_encoder, encoder, kind, values),
        inputs=PICTURES,
        call=outputs,
        reference=partial(by_processor, encoder, kind, values),
        features=ENCODES,
        **more,
    )


def edge(side: int) -> dict[str, Any]:
    return {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}


VIT_LABELS = of_processor(
    "labels",
    EncoderCase("ViTForImageClassification", VIT | THREE_LABELS | {"num_hidden_layers": 1}),
    "ViT",
    {"size": SQUARE, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.25, 0.2], "resample": 3},
    variants=(QUICK,),
)

DINO, REGISTERS = EncoderCase("Dinov2Model", DINOV2), IMAGES["dinov2-registers-classifier"]

# --- DINOv3: its processor needs torchvision ----------------------------------------------------


def write_dinov3(folder: Path, *, pooled: bool = False, side: int = tiny_dinov3.SIDE) -> None:
    tiny_dinov3.write(folder, pooled=pooled)
    size = {"height": side, "width": side}
    settings = {"image_processor_type": "DINOv3ViTImageProcessorFast", "size": size}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def by_dinov3(
    folder: Path, files: Sequence[bytes], *, pooled: bool = False, side: int = tiny_dinov3.SIDE
) -> list[Any]:
    images = [Image.open(io.BytesIO(file)).convert("RGB") for file in files]
    pixels = [tiny_dinov3.normalized(torch.tensor(np.asarray(image)), side) for image in images]
    with torch.inference_mode():
        output = IMAGES["dinov3"].read(folder)(pixel_values=torch.stack(pixels))
    vectors = F.normalize(output.pooler_output, dim=-1) if pooled else output.last_hidden_state
    return [*vectors.numpy()]


def dinov3(name: str, *, variants: Any = (FP32,), **options: Any) -> Case:
    write: Callable[..., None] = partial(write_dinov3, **options)
    return Case(
        name=f"dinov3 {name}",
        write=write,
        inputs=PICTURES,
        call=outputs,
        reference=partial(by_dinov3, **options),
        features=ENCODES,
        variants=variants,
    )


EMBEDDED = dinov3("embedding", pooled=True, variants=(FP32, low_bit("int8"), low_bit("int4")))

CASES = (VIT_LABELS, EMBEDDED)

MORE = (
    of_processor(
        "deit",
        EncoderCase("DeiTForImageClassificationWithTeacher", DEIT),
        "DeiT",
        {"size": {"height": 10, "width": 10}, "crop_size": SQUARE},
    ),
    *(of_processor(f"dinov2 {side}", DINO, "Bit", edge(side)) for side in (6, 8, 12)),
    of_processor("dinov2 gated", IMAGES["dinov2-gated"], "Bit", edge(8)),
    of_processor(
        "registers", EncoderCase("Dinov2WithRegistersModel", DINOV2_REGISTERS), "Bit", edge(8)
    ),
    *(of_processor(f"register labels {side}", REGISTERS, "Bit", edge(side)) for side in (6, 8, 12)),
    of_processor("clip", EncoderCase("CLIPModel", CLIP), "CLIP", edge(8)),
    of_processor(
        "clip projected", EncoderCase("CLIPVisionModelWithProjection", CLIP_VISION), "CLIP", edge(8)
    ),
    of_processor("siglip", IMAGES["siglip-classifier"], "Siglip", {"size": SQUARE}),
    *(dinov3(f"states {side}", side=side) for side in (6, tiny_dinov3.SIDE, 12)),
)
"""Cases whose answers alone are compared."""
