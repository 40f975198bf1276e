"""Decoders that read images as rows and columns of vectors, against transformers."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.cases import FP32, Case, low_bit
from tests.cases.images import TEMPLATE, answers, images_of, in_words, message
from tests.runtime.damaged_bundles import put
from tests.tiny.encoders import QWEN3_5_VL, QWEN3_VL
from tests.tiny.media import picture, write_checkpoint
from tests.tiny.tokenizers import of_characters
from tokenizers import Tokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

START, PAD, END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"


def write_qwen(folder: Path, values: Mapping[str, Any] = QWEN3_VL) -> None:
    """Images of 2 to 24 squares of 2 by 2 patches of 4 pixels."""
    tokenizer = of_characters()
    tokenizer.add_special_tokens([START, PAD, END])
    config = {
        **values,
        "image_token_id": tokenizer.token_to_id(PAD),
        "vision_start_token_id": tokenizer.token_to_id(START),
        "vision_end_token_id": tokenizer.token_to_id(END),
        "text_config": values["text_config"] | {"max_position_embeddings": 512},
    }
    processor = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": 4,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 2 * 8 * 8, "longest_edge": 24 * 8 * 8},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    template = TEMPLATE.replace("<image>", f"{START}{PAD}{END}")
    write_checkpoint(folder, config, tokenizer, template=template, processor=processor)


def by_qwen(folder: Path, prompts: Sequence[Any]) -> list[Any]:
    """Its own image processor, and as many placeholders as an image has vectors."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
    pad: Any = tokenizer.token_to_id(PAD)

    def given(prompt: Any) -> dict[str, Any]:
        images = images_of(prompt)
        seen = processor(images=images, return_tensors="pt") if images else {}
        text = in_words(prompt, f"{START}{PAD}{END}")
        for rows, columns in seen["image_grid_thw"][:, 1:].tolist() if images else ():
            text = text.replace(
                f"{START}{PAD}{END}", f"{START}{'@' * (rows * columns // 4)}{END}", 1
            )
        ids = torch.tensor([tokenizer.encode(text.replace("@", PAD)).ids])
        kinds = {"mm_token_type_ids": torch.eq(ids, pad).int()} if images else {}
        return {"input_ids": ids, **seen, **kinds}

    return answers(folder, prompts, given)


_WHITE = np.full((16, 48, 3), 255, np.uint8)

_LONG, _BROAD, _SMALL = picture(61, 19), picture(17, 50), picture()

_SEVERAL = [{"image": picture(40, 40, seed=seed)} for seed in range(4, 12)]
"""More than a block of the prefix cache."""

_QWEN: dict[str, Any] = {
    "reference": by_qwen,
    "part": "vision",
    "inputs": {
        "no image": "what is this",
        "a wide image": [{"image": _BROAD}, "what is this"],
        "an image at the end": ["what is ", {"image": _LONG}],
        "several images": [
            *("a ", {"image": _LONG}, " and ", {"image": _BROAD}),
            *({"image": _SMALL}, "say"),
        ],
        "an image twice": [{"image": _BROAD}, "and", {"image": _BROAD}],
        "white and wide": [{"image": _WHITE}, "say"],
        "as white, but tall": [{"image": _WHITE.swapaxes(0, 1)}, "say"],
    },
    "chat": message(["user:", {"image": _BROAD}, "say</s>A:"], _BROAD),
}

QWEN_VL = Case(
    name="qwen3_vl",
    family="qwen3_vl",
    write=write_qwen,
    features=frozenset({"generates", "drafts", "exact", "rewinds"}),
    variants=(FP32, low_bit("int8"), low_bit("int4")),
    prefixes=(
        [
            ([*_SEVERAL, {"image": image}, "say"], cached)
            for image, cached in ((_LONG, 0), (_BROAD, 128), (_LONG, 128))
        ],
    ),
    edits={
        "positions of a sequence": put("images", "positions", value="sequence"),
        "unknown positions": put("images", "positions", value="columns"),
        "tiles": put("images", "tiles", value={"grid": {"by": "longest_side", "pixels": 64}}),
    },
    **_QWEN,
)

QWEN_RECURRENT = Case(
    name="qwen3_5",
    family="qwen3_5",
    write=partial(write_qwen, values=QWEN3_5_VL),
    features=frozenset({"generates", "exact"}),
    **_QWEN,
)

CASES = (QWEN_VL, QWEN_RECURRENT)
