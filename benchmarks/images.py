"""Time to the first token of a question about an image: Ortolan beside transformers.

    python benchmarks/images.py
    python benchmarks/images.py --model smolvlm --threads 2 -r 5

The models have random weights: `llava` is CLIP's ViT-B/16 before a Llama of SmolLM2's 135M shape,
`smolvlm` has the shape of SmolVLM 256M, with an image in four tiles and as a whole, and `lfm2-vl`
that of LFM2-VL 450M. All precisions and transformers stay loaded and alternate, each round with
another image. Ortolan's time includes resizing and cutting, which transformers gets ready. Prints a
table and writes it to benchmarks/results/images.md or images-MODEL.md.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers

import ortolan
import report
from in_turn import in_turn, rows
from ortolan.export.options import ExportOptions, Int4
from prepare import say
from script import add_folders, add_timing, exit_status

QUESTION_TOKENS = 32

IMAGE, IMAGE_ID = "<image>", 1000

AROUND = [
    "<fake_token_around_image>",
    "<global-img>",
    *(f"<row_{r}_col_{c}>" for r in (1, 2) for c in (1, 2)),
    *("<|image_start|>", "<|image_end|>"),
]

TOWER = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
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


LFM2 = {
    "model_type": "lfm2",
    "vocab_size": 65_536,
    "hidden_size": 1024,
    "intermediate_size": 6656,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "max_position_embeddings": 2048,
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model and its images.

    Attributes:
        classes: start of the names of its classes in transformers.
        config: of the model besides that of the language model.
        processor: keys of the image processor.
        side: pixels of a side of an image.
        tiles: that the encoder reads, each as large as the side of its images.
        vectors: of a tile.
        words: for the heading.
        file: of the results.
        text: config of the language model.
        grid: rows and columns of patches, where transformers reads an image as flat patches.
    """

    classes: str
    config: dict[str, Any]
    processor: dict[str, Any]
    side: int
    tiles: int
    vectors: int
    words: str
    file: str
    text: dict[str, Any] = field(default_factory=lambda: TEXT)
    grid: tuple[int, int] | None = None


SHAPES = {
    "llava": Shape(
        classes="Llava",
        config={
            "vision_config": TOWER | {"model_type": "clip_vision_model", "image_size": 224},
            "image_token_index": IMAGE_ID,
        },
        processor={
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 224},
            "crop_size": {"height": 224, "width": 224},
        },
        side=224,
        tiles=1,
        vectors=196,
        words="A LLaVA of random weights: ViT-B/16 (196 vectors) and a Llama of 135M",
        file="images.md",
    ),
    "smolvlm": Shape(
        classes="Idefics3",
        config={
            "vision_config": TOWER | {"model_type": "idefics3_vision", "image_size": 512},
            "image_token_id": IMAGE_ID,
            "scale_factor": 4,
        },
        processor={
            "image_processor_type": "Idefics3ImageProcessor",
            "size": {"longest_edge": 1024},
            "max_image_size": {"longest_edge": 512},
        },
        side=640,
        tiles=5,
        vectors=64,
        words="The shape of SmolVLM 256M, with random weights: 5 tiles of 64 vectors",
        file="images-smolvlm.md",
    ),
    "lfm2-vl": Shape(
        classes="Lfm2Vl",
        config={
            "vision_config": TOWER
            | {"model_type": "siglip2_vision_model", "vision_use_head": False},
            "image_token_id": IMAGE_ID,
        },
        processor={"image_processor_type": "Lfm2VlImageProcessor"},
        side=512,
        tiles=1,
        vectors=256,
        words="The shape of LFM2-VL 450M, with random weights: 256 vectors",
        file="images-lfm2-vl.md",
        text=LFM2,
        grid=(32, 32),
    ),
}

PRECISIONS: dict[str, Any] = {"fp32": "fp32", "int8": "int8", "int4": Int4(effort="quick")}

Pixels = NDArray[np.uint8]
Ask = Callable[[Pixels], object]


def write_checkpoint(folder: Path, shape: Shape) -> None:
    """Write the checkpoint, once."""
    if (folder / "config.json").exists():
        return
    torch.manual_seed(0)
    words = {f"w{number}": number for number in range(IMAGE_ID)} | {IMAGE: IMAGE_ID}
    config = getattr(transformers, f"{shape.classes}Config")(text_config=shape.text, **shape.config)
    model: Any = _model_class(shape)(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(words, "w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([IMAGE, *AROUND])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "preprocessor_config.json").write_text(json.dumps(shape.processor))


def _model_class(shape: Shape) -> Any:
    return getattr(transformers, f"{shape.classes}ForConditionalGeneration")


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


def by_transformers(checkpoint: Path, shape: Shape, threads: int) -> Ask:
    """A way to ask transformers, in float32, on pixels that are ready."""
    torch.set_num_threads(threads)
    model: Any = _model_class(shape).from_pretrained(checkpoint, dtype=torch.float32)
    placeholders = [IMAGE_ID] * shape.vectors * shape.tiles
    ids = torch.tensor([[*placeholders, *range(1, QUESTION_TOKENS + 1)]])

    def ask(image: Pixels) -> object:
        random = torch.Generator().manual_seed(int(image[0, 0, 0]))
        with torch.inference_mode():
            return model.generate(
                input_ids=ids, **_pixels(shape, random), max_new_tokens=1, do_sample=False
            )

    return ask


def _pixels(shape: Shape, random: torch.Generator) -> dict[str, torch.Tensor]:
    """Pixels as a model of transformers reads them."""
    if shape.grid is not None:
        count = shape.grid[0] * shape.grid[1]
        return {
            "pixel_values": torch.rand((1, count, 3 * TOWER["patch_size"] ** 2), generator=random),
            "pixel_attention_mask": torch.ones((1, count), dtype=torch.int32),
            "spatial_shapes": torch.tensor([shape.grid]),
        }
    side = shape.config["vision_config"]["image_size"]
    batch = (1, 3, side, side) if shape.tiles == 1 else (1, shape.tiles, 3, side, side)
    return {"pixel_values": torch.rand(batch, generator=random)}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Time questions about images.")
    parser.add_argument("--model", choices=SHAPES, default="llava")
    add_timing(parser, rounds=7)
    add_folders(parser)
    return parser.parse_args(arguments)


def side_by_side(args: argparse.Namespace) -> None:
    """Prepare, measure alternately, print and write."""
    shape, work = SHAPES[args.model], args.work / args.model
    checkpoint = work / "checkpoint"
    write_checkpoint(checkpoint, shape)
    ways = {name: by_ortolan(checkpoint, work, name, args.threads) for name in PRECISIONS}
    ways["transformers fp32"] = by_transformers(checkpoint, shape, args.threads)
    size = (shape.side, shape.side, 3)
    seconds = in_turn(
        ways,
        lambda random: random.integers(0, 256, size).astype(np.uint8),
        rounds=args.rounds,
    )
    lines = [
        "# Questions about images",
        "",
        f"{report.machine()['processor']}, {args.threads} threads, {args.rounds} rounds in turn. "
        f"{shape.words}. Time from an image of",
        f"{shape.side} by {shape.side} pixels and {QUESTION_TOKENS} tokens to the first token; "
        "every image is another one.",
        "",
        "| | ms, median | range | times as fast as transformers |",
        "|---|---:|---:|---:|",
    ]
    lines += rows(seconds, reference="transformers fp32")
    text = "\n".join(lines) + "\n"
    print(text)
    (args.out / shape.file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(exit_status(side_by_side, parse()))
