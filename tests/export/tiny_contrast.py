"""A CLIP and a SigLIP with random weights, a tokenizer and a processor of images."""

import copy
import json
from pathlib import Path
from typing import Any

from tests.modeling.tiny_encoders import EncoderCase
from tests.tiny.encoders import CLIP, SIGLIP
from tokenizers import Tokenizer, decoders, models, processors
from transformers import PreTrainedModel

LENGTH = 64
"""Tokens of a text of SigLIP, and most of CLIP."""

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("CLIPModel", CLIP),
    "siglip": ("SiglipModel", SIGLIP),
}


def tokenizer(kind: str) -> Tokenizer:
    """One token per ASCII character; CLIP's end token has the highest id, as published."""
    characters = [chr(code) for code in range(32, 126)]
    tokens = ["<unk>", "<pad>", "<s>", *characters, "</s>"]
    vocab = {token: place for place, token in enumerate(tokens)}
    library = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    library.add_special_tokens(["<pad>", "<s>", "</s>"])
    library.decoder = decoders.Fuse()
    single = "<s> $A </s>" if kind == "clip" else "$A </s>"
    ends = [(token, vocab[token]) for token in ("<s>", "</s>")]
    library.post_processor = processors.TemplateProcessing(single=single, special_tokens=ends)
    return library


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
    name = {"clip": "CLIP", "siglip": "Siglip"}[kind]
    processor = {"image_processor_type": f"{name}ImageProcessor", "size": size}
    processor |= {"crop_size": square} if kind == "clip" else {}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model
