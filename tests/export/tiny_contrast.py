"""A CLIP, a SigLIP and a SigLIP 2 with random weights, a tokenizer and a processor of images."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.modeling.tiny_encoders import EncoderCase
from tests.tiny.encoders import CLIP, SIGLIP, SIGLIP2
from tests.tiny.media import picture
from tests.tiny.tokenizers import of_characters, with_ends
from tokenizers import Tokenizer
from transformers import PreTrainedModel

import ortolan
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
) -> PreTrainedModel:
    """Write a checkpoint, and return its model."""
    values = values_of(kind, eos_token_id=eos_token_id)
    model = EncoderCase(KINDS[kind][0], values).write(folder)
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
    return model


def image_processor(kind: str) -> Any:
    """The class of the image processor of transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        return getattr(transformers, f"{PREFIXES[kind]}ImageProcessorPil")


LABELS = ["cat", "a dog", "fish & chips"]

PICTURES = [picture(seed=1), picture(seed=2)]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("clip", {}),
    "clip-own-end": ("clip", {"eos_token_id": tokenizer("clip").token_to_id("</s>")}),
    "siglip": ("siglip", {}),
    "siglip2": ("siglip2", {}),
}


class Case:
    """A checkpoint, its bundle, and both as models."""

    def __init__(self, folder: Path, name: str, *, has_tokenizer: bool = True) -> None:
        self.kind, options = CASES[name]
        self.checkpoint, self.folder = folder / "checkpoint", folder / "bundle"
        self.reference: Any = write(
            self.checkpoint, self.kind, has_tokenizer=has_tokenizer, **options
        )
        ortolan.export(self.checkpoint, self.folder)
        self.model = ortolan.load(self.folder, Encoder, threads=1)
        self.tokenizer = tokenizer(self.kind)

    def expected(self, texts: list[str]) -> Any:
        """Outputs of transformers for all pictures and texts."""
        ids = [self.tokenizer.encode(text).ids for text in texts]
        pad = self.tokenizer.token_to_id("<pad>")
        length = max(map(len, ids)) if self.kind == "clip" else LENGTH
        rows = [[*row, *[pad] * (length - len(row))] for row in ids]
        given = {"input_ids": torch.tensor(rows), **self._images()}
        with torch.inference_mode():
            return self.reference(**given)

    def _images(self) -> dict[str, Any]:
        """The pictures as inputs of transformers."""
        if self.kind != "siglip2":
            pixels = np.stack([self.model.pixels(image) for image in PICTURES])
            return {"pixel_values": torch.from_numpy(pixels)}
        processor = image_processor(self.kind).from_pretrained(str(self.checkpoint))
        images = [Image.fromarray(image) for image in PICTURES]
        return dict(processor(images=images, return_tensors="pt"))
