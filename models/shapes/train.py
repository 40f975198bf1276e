"""Train the checkpoint of this folder, in `models`: python -m shapes.train [OUT]."""

import argparse
import json
import math
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlavaConfig, LlavaForConditionalGeneration

from .scenes import COLORS, SIDE, Example, examples

HERE = Path(__file__).parent

STEPS, BATCH, RATE, WARMUP = 5000, 48, 1.5e-3, 200

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
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[PAD, BOS, EOS, IMAGE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, _id(tokenizer, BOS))]
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
    names = {"bos": BOS, "eos": EOS, "pad": PAD}
    ids: dict[str, Any] = {
        f"{name}_token_id": tokenizer.token_to_id(token) for name, token in names.items()
    }
    config = LlavaConfig(
        vision_config=vision,
        text_config=text | ids,
        image_token_index=_id(tokenizer, IMAGE),
        image_seq_length=VECTORS,
        vision_feature_layer=-2,
        tie_word_embeddings=True,
        **ids,
    )
    return LlavaForConditionalGeneration(config)


def _id(tokenizer: Tokenizer, token: str) -> int:
    return int(tokenizer.get_vocab()[token])


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def batch_of(tokenizer: Tokenizer, drawn: list[Example]) -> dict[str, torch.Tensor]:
    """Pictures and padded texts; only answers count in the loss."""
    image, eos, bos, pad = (_id(tokenizer, token) for token in (IMAGE, EOS, BOS, PAD))
    rows, labels = [], []
    for example in drawn:
        before = [bos, *[image] * VECTORS, *_ids(tokenizer, example.question)]
        after = [*_ids(tokenizer, f" {example.answer}"), eos]
        rows.append(before + after)
        labels.append([-100] * len(before) + after)
    longest = max(map(len, rows))
    pixels = np.stack([np.asarray(example.picture) for example in drawn]) / 255
    return {
        "input_ids": torch.tensor([row + [pad] * (longest - len(row)) for row in rows]),
        "labels": torch.tensor([row + [-100] * (longest - len(row)) for row in labels]),
        "pixel_values": torch.tensor((pixels - MEAN) / STD, dtype=torch.float32).permute(
            0, 3, 1, 2
        ),
    }


def rate(step: int) -> float:
    """The learning rate of a step: linear warm-up, then a cosine."""
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    return RATE * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def main(out: Path) -> None:
    """Train and write the checkpoint."""
    torch.manual_seed(0)
    texts = [f"{e.question} {e.answer}" for e in islice(examples(99, unseen=None), 3000)]
    tokenizer = tokenizer_of([*texts, *(f"What shape is {color}?" for color in COLORS)])
    model = model_of(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    data, began, losses = examples(0), time.monotonic(), []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        batch = batch_of(tokenizer, list(islice(data, BATCH)))
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step % 100 == 99:
            print(f"step {step + 1}: loss {np.mean(losses[-100:]):.4f}", flush=True)
    write(out, model, tokenizer)
    figures = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "training_seconds": round(time.monotonic() - began),
        "examples": STEPS * BATCH,
        "train_loss": round(float(np.mean(losses[-100:])), 4),
    }
    (out / "training.json").write_text(json.dumps(figures, indent=2) + "\n")


def write(out: Path, model: Any, tokenizer: Tokenizer) -> None:
    """Write the checkpoint as transformers reads it."""
    out.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special, "chat_template": TEMPLATE}
    processor = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": SIDE},
        "crop_size": {"height": SIDE, "width": SIDE},
        "image_mean": [MEAN] * 3,
        "image_std": [STD] * 3,
    }
    for name, values in (("tokenizer_config", settings), ("preprocessor_config", processor)):
        (out / f"{name}.json").write_text(json.dumps(values, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=HERE)
    main(parser.parse_args().out)
