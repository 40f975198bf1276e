"""Train the checkpoint of this folder, in `models`: python -m shapes.train [OUT]."""

import argparse
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, processors
from transformers import LlavaConfig, LlavaForConditionalGeneration

from fitting import fit, write
from ortolan.modeling.training.recipe import OptimizerRecipe
from ortolan.modeling.training.tokenizer import byte_level_bpe, id_of, padded

from .scenes import COLORS, SIDE, Example, examples

HERE = Path(__file__).parent

RECIPE = OptimizerRecipe(
    steps=5000,
    batch_size=48,
    learning_rate=1.5e-3,
    warmup_steps=200,
    beta2=0.98,
    weight_decay=0.01,
)

BOS, EOS, PAD, IMAGE = "<s>", "</s>", "<pad>", "<image>"

PATCH = 8
VECTORS = (SIDE // PATCH) ** 2

MEAN, STD = 0.5, 0.5

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}"
    " {{ message.content }}{{ eos_token }}{% elif message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}<image>{% else %}"
    "{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


def tokenizer_of(texts: list[str]) -> Tokenizer:
    """A byte-level BPE in which every word is one token."""
    tokenizer = byte_level_bpe(texts, vocab_size=400, special_tokens=[PAD, BOS, EOS, IMAGE])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, id_of(tokenizer, BOS))]
    )
    return tokenizer


def model_of(tokenizer: Tokenizer) -> Any:
    """A LLaVA of 1.8 million parameters: CLIP with 5 layers, Llama with 4."""
    vision: dict[str, Any] = {
        "model_type": "clip_vision_model",
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "image_size": SIDE,
        "patch_size": PATCH,
        "hidden_act": "gelu",
    }
    text: dict[str, Any] = {
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
    }
    names = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    ids: dict[str, Any] = {name: id_of(tokenizer, token) for name, token in names.items()}
    config = LlavaConfig(
        vision_config=vision,
        text_config=text | ids,
        image_token_index=id_of(tokenizer, IMAGE),
        image_seq_length=VECTORS,
        vision_feature_layer=-2,
        tie_word_embeddings=True,
        **ids,
    )
    return LlavaForConditionalGeneration(config)


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def batch_of(tokenizer: Tokenizer, drawn: list[Example]) -> dict[str, torch.Tensor]:
    """Pictures and padded texts; only answers count in the loss."""
    image, eos, bos, pad = (id_of(tokenizer, token) for token in (IMAGE, EOS, BOS, PAD))
    rows, labels = [], []
    for example in drawn:
        before = [bos, *[image] * VECTORS, *_ids(tokenizer, example.question)]
        after = [*_ids(tokenizer, f" {example.answer}"), eos]
        rows.append(before + after)
        labels.append([-100] * len(before) + after)
    pixels = np.stack([np.asarray(example.picture) for example in drawn]) / 255
    pixels_BCYX = ((pixels - MEAN) / STD).transpose(0, 3, 1, 2)
    return {
        "input_ids": padded(rows, pad)[0],
        "labels": padded(labels, -100)[0],
        "pixel_values": torch.tensor(pixels_BCYX, dtype=torch.float32),
    }


def main(out: Path) -> None:
    """Train and write the checkpoint."""
    torch.manual_seed(0)
    texts = [f"{e.question} {e.answer}" for e in islice(examples(99, unseen=None), 3000)]
    tokenizer = tokenizer_of([*texts, *(f"What shape is {color}?" for color in COLORS)])
    model, data = model_of(tokenizer), examples(0)

    def losses() -> list[torch.Tensor]:
        return [model(**batch_of(tokenizer, list(islice(data, RECIPE.batch_size)))).loss]

    figures = fit(model, RECIPE, losses)
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special, "chat_template": TEMPLATE}
    processor = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": SIDE},
        "crop_size": {"height": SIDE, "width": SIDE},
        "image_mean": [MEAN] * 3,
        "image_std": [STD] * 3,
    }
    write(
        out,
        model.to(torch.bfloat16),
        tokenizer,
        {"tokenizer_config": settings, "preprocessor_config": processor, "training": figures},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=HERE)
    main(parser.parse_args().out)
