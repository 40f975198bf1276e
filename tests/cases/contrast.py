"""Encoders of images and of texts in one bundle, and of images of any size."""

import copy
import json
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from tests.cases import FP32, Case, Variant, low_bit
from tests.modeling.tiny_encoders import EncoderCase
from tests.runtime.damaged_bundles import put
from tests.tiny.encoders import CLIP, SIGLIP, SIGLIP2, SIGLIP2_VISION
from tests.tiny.media import picture
from tests.tiny.tokenizers import of_characters, with_ends
from tokenizers import Tokenizer

from ortolan.modeling.families import FAMILIES
from ortolan.runtime import Encoder

LENGTH = 64
"""Tokens of a text of SigLIP, and most of CLIP."""

PREFIXES = {"clip": "CLIP", "siglip": "Siglip", "siglip2": "Siglip2"}
"""Beginnings of the names of classes of transformers."""

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("CLIPModel", CLIP),
    "siglip": ("SiglipModel", SIGLIP),
    "siglip2": ("Siglip2Model", SIGLIP2),
}


def tokenizer(kind: str) -> Tokenizer:
    """One token per ASCII character; CLIP's end token has the highest id, as published."""
    library = of_characters(("<unk>", "<pad>", "<s>"), ("</s>",))
    library.add_special_tokens(["<pad>", "<s>", "</s>"])
    return with_ends(library, "<s> $A </s>" if kind == "clip" else "$A </s>")


def values_of(kind: str, *, eos_token_id: int | None = None) -> dict[str, Any]:
    """The config; `eos_token_id` of CLIP is 2 as in old files, or the tokenizer's."""
    library = tokenizer(kind)
    values = copy.deepcopy(KINDS[kind][1])
    values["architectures"] = [KINDS[kind][0]]
    values["text_config"] |= {
        "vocab_size": library.get_vocab_size(),
        "max_position_embeddings": LENGTH,
        "bos_token_id": library.token_to_id("<s>"),
        "eos_token_id": 2 if eos_token_id is None else eos_token_id,
        "pad_token_id": 0,
    }
    return values


def write(
    folder: Path, kind: str, *, eos_token_id: int | None = None, has_tokenizer: bool = True
) -> None:
    """Write a checkpoint."""
    EncoderCase(KINDS[kind][0], values_of(kind, eos_token_id=eos_token_id)).write(folder)
    if has_tokenizer:
        tokenizer(kind).save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"}))
    square = {"height": 8, "width": 8}
    size = {"shortest_edge": 8} if kind == "clip" else square
    processor: dict[str, Any] = {"image_processor_type": f"{PREFIXES[kind]}ImageProcessor"}
    if kind == "siglip2":
        processor |= {"patch_size": 2, "max_num_patches": 16}
    else:
        processor |= {"size": size}
    processor |= {"crop_size": square} if kind == "clip" else {}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


def image_processor(kind: str) -> Any:
    """The class of the image processor of transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(transformers, f"{PREFIXES[kind]}ImageProcessorPil")


def length_of(kind: str, rows: Sequence[Sequence[int]]) -> int:
    """Tokens of padded texts: SigLIP was trained with all places, filled or not."""
    return max(map(len, rows)) if kind == "clip" else LENGTH


LABELS = ["cat", "a dog", "fish & chips"]

PICTURES = [picture(seed=1), picture(seed=2)]

TEXTS = [f"This is a photo of {label}." for label in LABELS]


def seen(model: Encoder, inputs: Sequence[Any]) -> list[Any]:
    """The embedding of each text; of each image, that and the probabilities of labels."""
    found: list[Any] = [None] * len(inputs)
    texts = [place for place, each in enumerate(inputs) if isinstance(each, str)]
    images = [place for place in range(len(inputs)) if place not in texts]
    if texts:
        for place, row in zip(texts, model.texts.embed([inputs[p] for p in texts]), strict=True):
            found[place] = row
    if images:
        chosen = [inputs[place] for place in images]
        rows, labels = model.embed(chosen), model.classify_as(chosen, LABELS)
        for place, row, result in zip(images, rows, labels, strict=True):
            found[place] = (row, result.label, dict(result.probabilities))
    return found


def by_transformers(kind: str, checkpoint: Path, inputs: Sequence[Any]) -> list[Any]:
    """The same from the model of transformers, and its image processor."""
    model: Any = getattr(transformers, KINDS[kind][0]).from_pretrained(checkpoint)
    library = tokenizer(kind)
    texts = [each for each in inputs if isinstance(each, str)]
    # as Siglip2Tokenizer, which is in transformers 5
    read = str.lower if kind == "siglip2" else str
    ids = [library.encode(read(text)).ids for text in (*TEXTS, *texts)]
    pad, length = library.token_to_id("<pad>"), length_of(kind, ids)
    pictures = [each for each in inputs if not isinstance(each, str)]
    processor = image_processor(kind).from_pretrained(str(checkpoint))
    pixels = processor(images=[Image.fromarray(each) for each in pictures], return_tensors="pt")
    rows = torch.tensor([[*row, *[pad] * (length - len(row))] for row in ids])
    with torch.inference_mode():
        output = model(input_ids=rows, **pixels)
    of_texts = iter(output.text_embeds[len(TEXTS) :].numpy())
    logits = output.logits_per_image[:, : len(TEXTS)]
    shares = logits.softmax(-1) if kind == "clip" else logits.sigmoid()
    of_images = iter(zip(output.image_embeds.numpy(), shares.tolist(), strict=True))
    found: list[Any] = []
    for each in inputs:
        if isinstance(each, str):
            found.append(next(of_texts))
        else:
            row, numbers = next(of_images)
            ranked = sorted(zip(numbers, LABELS, strict=True), reverse=True)
            found.append((row, ranked[0][1], {label: share for share, label in ranked}))
    return found


def _classified(**given: Any) -> Any:
    arguments: dict[str, Any] = {"inputs": PICTURES, "labels": LABELS, **given}
    return lambda model: model.classify_as(**arguments)


def _case(kind: str, name: str | None = None, **fields: Any) -> Case:
    options = fields.pop("options", {})
    return Case(
        name=name or kind,
        family=kind if kind in FAMILIES else None,
        write=partial(write, kind=kind, **options),
        call=seen,
        reference=partial(by_transformers, kind),
        features=frozenset({"one by one"} if kind == "siglip2" else {"every role"}),
        part="text",
        inputs={
            "an image": PICTURES[0],
            "another image": PICTURES[1],
            "a text": TEXTS[0],
            "an end within": "ends </s> early",
            "one token": "x",
        },
        **fields,
    )


OF_CLIP = _case(
    "clip",
    variants=(FP32, Variant(name="int8", precision="int8", tolerance=0.1)),
    edits={
        "text: model": put("provenance", "model_type", value="other"),
    },
    refusals={"independent labels": _classified(multi_label=True)},
)

OF_SIGLIP = _case(
    "siglip",
    refusals={
        "no labels": _classified(labels=[]),
        "an empty label": _classified(labels=["a", " "]),
        "a label twice": _classified(labels=["a", "a"]),
        "a template without a place": _classified(template="It is."),
        "a missing file": _classified(inputs="no such file.png"),
        "a number": _classified(inputs=3),
        "truncate": _classified(truncate=1),
        "multi_label": _classified(multi_label="yes"),
        "a long label": _classified(labels=["z" * 50, "a"]),
    },
)

# --- images that keep their proportions -----------------------------------------------------------

PATCHES = 24

SIZES = [
    (8, 8), (30, 17), (17, 30), (3, 3), (100, 33), (33, 100), (5, 37), (64, 64), (31, 32), (63, 21),
    (9, 50), (50, 9), (1, 1), (19, 19), (400, 300), (2, 5), (29, 30), (16, 24), (24, 16), (13, 29),
]  # fmt: skip
"""Heights and widths of images."""


def write_patches(folder: Path) -> None:
    """An encoder of at most 24 patches of 2 by 2 pixels."""
    EncoderCase("Siglip2VisionModel", SIGLIP2_VISION | {"vision_use_head": False}).write(folder)
    keys: dict[str, Any] = {"patch_size": 2, "max_num_patches": PATCHES, "do_convert_rgb": True}
    keys |= {"image_processor_type": "Siglip2ImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(keys))


def by_padding(checkpoint: Path, images: Sequence[Any]) -> list[Any]:
    """Vectors of images that transformers pads to the same number of patches."""
    reference: Any = EncoderCase("Siglip2VisionModel", {}).read(checkpoint)
    processor = image_processor("siglip2").from_pretrained(checkpoint)
    inputs = processor([Image.fromarray(image) for image in images], return_tensors="pt")
    with torch.inference_mode():
        states = reference(**inputs).last_hidden_state.numpy()
    counts = inputs["spatial_shapes"].prod(-1).tolist()
    return [rows[:count] for rows, count in zip(states, counts, strict=True)]


OF_PATCHES = Case(
    name="siglip2, any size",
    features=frozenset({"one by one", "every role"}),
    family="siglip2_vision_model",
    write=write_patches,
    call=lambda model, images: model.states(images),
    reference=by_padding,
    variants=(
        FP32,
        Variant(name="fp16", precision="fp16", tolerance=0.01),
        Variant(name="int8", precision="int8", tolerance=0.05),
        low_bit("int4"),
    ),
    inputs={f"{height} x {width}": picture(height, width) for height, width in SIZES},
    edits={
        "resample": put("source", "resample", value="bicubic"),
        "mean": put("source", "mean", value=[0.4, 0.5, 0.5]),
        "table": put("source", "table", "interpolation", value="corners"),
        "size": put("source", "size", value={"by": "whole_squares", "least": 4, "most": 90}),
        "layout": put("source", "layout", value="channels_first"),
    },
)

CASES = (
    OF_CLIP,
    _case("clip", "clip, own end", options={"eos_token_id": tokenizer("clip").token_to_id("</s>")}),
    OF_SIGLIP,
    _case("siglip2"),
    OF_PATCHES,
)
