"""Time to the first token of a question about an image: Ortolan beside transformers.

    python benchmarks/images.py
    python benchmarks/images.py --threads 2 -r 9

The model is a LLaVA of random weights: CLIP's ViT-B/16 before a Llama of SmolLM2's 135M shape. All
precisions and transformers stay loaded and alternate, each round with another image. Prints a table
and writes it to benchmarks/results/images.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count as numbers
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlavaConfig, LlavaForConditionalGeneration

import ortolan
import report
from ortolan.export.options import ExportOptions, Int4
from prepare import say
from script import add_folders, add_timing, exit_status

SIDE, QUESTION_TOKENS = 224, 32

IMAGE = "<image>"

VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": SIDE,
    "patch_size": 16,
}

TEXT = {
    "model_type": "llama",
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}

VECTORS = (SIDE // 16) ** 2

PRECISIONS: dict[str, Any] = {"fp32": "fp32", "int8": "int8", "int4": Int4(effort="quick")}

Pixels = NDArray[np.uint8]
Ask = Callable[[Pixels], object]


def write_checkpoint(folder: Path) -> None:
    """Write the checkpoint, once."""
    if (folder / "config.json").exists():
        return
    torch.manual_seed(0)
    words = {f"w{number}": number for number in range(1000)} | {IMAGE: 1000}
    config = LlavaConfig(vision_config=VISION, text_config=TEXT, image_token_index=1000)
    model: Any = LlavaForConditionalGeneration(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(words, "w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([IMAGE])
    tokenizer.save(str(folder / "tokenizer.json"))
    sizes = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    processor = {"image_processor_type": "CLIPImageProcessor", **sizes}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


def by_ortolan(checkpoint: Path, work: Path, name: str, threads: int) -> Ask:
    """A way to ask a bundle."""
    out = work / name
    if not (out / "manifest.json").exists():
        say(f"exporting {name}")
        options = ExportOptions(graphs="split" if name == "int4" else "unified", allow_poor=True)
        ortolan.export(checkpoint, out, precision=PRECISIONS[name], options=options, force=True)
    model = ortolan.load(out, ortolan.Decoder, threads=threads)
    question = " ".join(f"w{number}" for number in range(1, QUESTION_TOKENS + 1))

    def ask(image: Pixels) -> object:
        return model.generate([{"image": image}, question], max_new_tokens=1).tokens

    return ask


def by_transformers(checkpoint: Path, threads: int) -> Ask:
    """A way to ask transformers, in float32, on pixels that are normalized already."""
    torch.set_num_threads(threads)
    model: Any = LlavaForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32)
    ids = torch.tensor([[1000] * VECTORS + [*range(1, QUESTION_TOKENS + 1)]])

    def ask(image: Pixels) -> object:
        pixels = torch.from_numpy(image.transpose(2, 0, 1)[None].astype(np.float32) / 255)
        with torch.inference_mode():
            return model.generate(
                input_ids=ids, pixel_values=pixels, max_new_tokens=1, do_sample=False
            )

    return ask


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Time questions about images.")
    add_timing(parser, rounds=7)
    add_folders(parser)
    return parser.parse_args(arguments)


def side_by_side(args: argparse.Namespace) -> None:
    """Prepare, measure alternately, print and write."""
    work = args.work / "llava"
    checkpoint = work / "checkpoint"
    write_checkpoint(checkpoint)
    ways = {name: by_ortolan(checkpoint, work, name, args.threads) for name in PRECISIONS}
    ways["transformers fp32"] = by_transformers(checkpoint, args.threads)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    seeds = numbers()
    for turn in range(args.rounds + 1):
        for name, ask in ways.items():
            random = np.random.default_rng(next(seeds))
            image = random.integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
            began = time.perf_counter()
            ask(image)
            if turn:  # the first is a warm-up
                seconds[name].append(time.perf_counter() - began)
    lines = [
        "# Questions about images",
        "",
        f"{report.machine()['processor']}, {args.threads} threads, {args.rounds} rounds in turn. "
        "A LLaVA of random weights: ViT-B/16 (196 vectors) and a Llama",
        f"of 135M. Time from an image of {SIDE} by {SIDE} pixels and {QUESTION_TOKENS} tokens to "
        "the first token; every image is another one.",
        "",
        "| | ms, median | range | times as fast as transformers |",
        "|---|---:|---:|---:|",
    ]
    slowest = seconds["transformers fp32"]
    for name, measured in seconds.items():
        ratio = median(b / a for a, b in zip(measured, slowest, strict=True))
        span = f"{1000 * min(measured):.0f} to {1000 * max(measured):.0f}"
        lines.append(f"| {name} | {1000 * median(measured):.0f} | {span} | {ratio:.2f} |")
    text = "\n".join(lines) + "\n"
    print(text)
    (args.out / "images.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(exit_status(side_by_side, parse()))
