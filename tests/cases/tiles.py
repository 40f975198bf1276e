"""Decoders that read images in tiles, against the processors and models of transformers."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from tests.cases import FP32, Case, lfm2_vl_processor, low_bit
from tests.cases.images import TEMPLATE, answers, message, processed
from tests.runtime.damaged_bundles import put
from tests.tiny.encoders import IDEFICS3, INTERNVL, LFM2_VL, SMOLVLM
from tests.tiny.media import picture, write_checkpoint
from tests.tiny.tokenizers import of_characters
from transformers import Idefics3Processor, InternVLProcessor, PreTrainedTokenizerFast

SIDE = 8
"""Pixels of a tile."""

VALUES = {"idefics3": IDEFICS3, "internvl": INTERNVL, "lfm2_vl": LFM2_VL, "smolvlm": SMOLVLM}

PLACEHOLDERS = dict.fromkeys(VALUES, "<image>") | {"internvl": "<IMG_CONTEXT>"}
"""Token that stands for an image in a text, and for each of its vectors."""

SPECIAL = (
    *("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    *(f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7)),
    *("<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
    *("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
    *(f"<|img_row_{r}_col_{c}|>" for r in range(1, 5) for c in range(1, 5) if r * c < 5),
)

_LONGEST = {
    "size": {"longest_edge": 4 * SIDE},
    "max_image_size": {"longest_edge": SIDE},
    "do_pad": True,
    "return_row_col_info": False,
}

PROCESSORS: dict[str, dict[str, Any]] = {
    "idefics3": {"image_processor_type": "Idefics3ImageProcessor", **_LONGEST},
    "internvl": {
        "image_processor_type": "GotOcr2ImageProcessorFast",
        "size": {"height": SIDE, "width": SIDE},
        "crop_to_patches": False,
    },
    "lfm2_vl": {
        "image_processor_type": "Lfm2VlImageProcessor",
        "encoder_patch_size": 2,
        "tile_size": 16,
        "min_image_tokens": 4,
        "max_image_tokens": 12,
        "max_tiles": 4,
    },
    "smolvlm": {"image_processor_type": "SmolVLMImageProcessor", **_LONGEST},
}


def write(
    folder: Path, model_type: str, *, tower: Mapping[str, Any] | None = None, **processor: Any
) -> None:
    """Write the checkpoint.

    Args:
        folder: where to.
        model_type: of the checkpoint.
        tower: changes to the config of the image encoder.
        processor: changes to the keys of the image processor.
    """
    tokenizer = of_characters()
    tokenizer.add_tokens(["\n", "\n\n"])
    tokenizer.add_special_tokens([*SPECIAL])
    values = VALUES[model_type]
    values = values | {
        "image_token_id": tokenizer.token_to_id(PLACEHOLDERS[model_type]),
        "text_config": values["text_config"] | {"max_position_embeddings": 800},
        "vision_config": values["vision_config"] | (tower or {}),
    }
    template = TEMPLATE.replace("<image>", PLACEHOLDERS[model_type])
    keys = PROCESSORS[model_type] | processor
    write_checkpoint(folder, values, tokenizer, template=template, processor=keys)


class OfImages(InternVLProcessor):
    """Without the processor of videos, which needs another package."""

    def check_argument_for_proper_class(self, *_: Any) -> None: ...


def image_processor(model_type: str, folder: Path) -> Any:
    """The processor of transformers."""
    kind = {"idefics3": "Idefics3", "internvl": "GotOcr2", "smolvlm": "SmolVLM"}[model_type]
    return getattr(transformers, f"{kind}ImageProcessorPil").from_pretrained(folder)


def processor_of(model_type: str, folder: Path) -> Any:
    """The processor of both. SmolVLM's needs a package for videos, and writes the same texts."""
    if model_type == "lfm2_vl":
        return lfm2_vl_processor.processor(folder)
    named = {"start_image_token": "<img>", "end_image_token": "</img>"}
    named |= {"context_image_token": "<IMG_CONTEXT>", "video_token": "<video>"}
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(folder / "tokenizer.json"), extra_special_tokens=named
    )
    images = image_processor(model_type, folder)
    if model_type == "internvl":
        return OfImages(images, tokenizer, image_seq_length=4)
    return Idefics3Processor(images, tokenizer, image_seq_len=4)


def by_transformers(model_type: str, folder: Path, prompts: Sequence[Any]) -> list[Any]:
    """Answers of the checkpoint's own processor and model."""
    processor = processor_of(model_type, folder)
    return answers(folder, prompts, partial(processed, processor, PLACEHOLDERS[model_type]))


WIDE, TALL, SQUARE = picture(12, 30), picture(30, 7), picture(20, 20)

_BLACK = np.zeros((8, 30, 3), np.uint8)

_MANY = [{"image": picture(40, size)} for size in range(20, 24)]
"""More than a block of the prefix cache."""


INPUTS: dict[str, Any] = {
    "wide": [{"image": WIDE}, "what is this"],
    "two images": ["a ", {"image": WIDE}, " and ", {"image": SQUARE}, " say"],
    "tall, at the end": ["what is ", {"image": TALL}],
    "two in a row": [{"image": SQUARE}, {"image": TALL}, "say"],
    "black and wide": [{"image": _BLACK}, "say"],
    "as black, but tall": [{"image": _BLACK.swapaxes(0, 1)}, "say"],
}


REPLACING = {"lfm2_vl"}
"""Models with states that are replaced."""


def _case(model_type: str, **fields: Any) -> Case:
    """The case of a model as it is published."""
    return Case(
        name=model_type,
        family=model_type,
        write=partial(write, model_type=model_type),
        reference=partial(by_transformers, model_type),
        part="vision",
        features=frozenset(
            {"generates", "exact", *(() if model_type in REPLACING else ("rewinds",))}
        ),
        inputs=INPUTS,
        chat=message(["user:", {"image": WIDE}, "say</s>A:"], WIDE),
        **fields,
    )


def _other(model_type: str, name: str, **changes: Any) -> Case:
    """The case of a model with changes to its checkpoint, whose answers are compared."""
    return Case(
        name=f"{model_type}, {name}",
        write=partial(write, model_type=model_type, **changes),
        reference=partial(by_transformers, model_type),
        part="vision",
        inputs={name: INPUTS[name] for name in ("wide", "two images")},
    )


def _tiles(**values: Any) -> dict[str, Any]:
    """Edits of how images are cut."""
    return {
        name: put("images", "tiles", *name.split(", "), value=value)
        for name, value in values.items()
    }


CASES = (
    _case("idefics3"),
    _case(
        "smolvlm",
        edits=_tiles(**{"grid, pixels": 40, "split": False, "whole": "x"}),
        refused={
            "vectors": {"size": {"longest_edge": 4000}},
            "pixels": {"size": {"longest_edge": 5000}},
            "other tiles": {"max_image_size": {"longest_edge": 16}},
        },
    ),
    _case(
        "internvl",
        edits=_tiles(**{"grid, most": 2, "split": False}),
        refused={
            "tiles": {"max_patches": 65},
            "order": {"min_patches": 5, "max_patches": 4},
            "no sizes": {"do_resize": False},
        },
    ),
    _case(
        "lfm2_vl",
        variants=(FP32, low_bit("int8"), low_bit("int4")),
        prefixes=(
            [
                ([{"image": image}, *_MANY, "?"], cached)
                for image, cached in ((_BLACK, 0), (_BLACK.swapaxes(0, 1), 0), (_BLACK, 128))
            ],
        ),
        edits=_tiles(
            **{"grid, pixels": 383, "end": ""},
            grid={"by": "closest_shape", "least": 2, "most": 4},
        )
        | {
            "no squares": put("images", "tiles", "grid", "tile", value=10),
            "larger than the encoder": put("images", "tiles", "grid", "tile", value=20),
        },
        refused={
            "no whole image": {"use_thumbnail": False},
            "no squares": {"tile_size": 18},
            "order": {"min_tiles": 5},
            "vectors": {"max_tiles": 64, "tile_size": 64},
        },
    ),
    _other("smolvlm", "whole images", do_image_splitting=False),
    _other("smolvlm", "one tile", size={"longest_edge": SIDE}),
    _other("smolvlm", "bicubic", resample=3),
    _other("internvl", "few tiles", min_patches=3, max_patches=8, resample=2),
    _other("internvl", "tiles", crop_to_patches=True),
    _other("internvl", "one tile", max_patches=1),
    _other("internvl", "five tiles", max_patches=5),
    _other("internvl", "norms of queries", tower={"use_qk_norm": True, "norm_type": "rms_norm"}),
    _other("internvl", "biases", tower={"attention_bias": True, "use_mean_pooling": False}),
    _other("lfm2_vl", "whole images", do_image_splitting=False, max_image_tokens=9),
)
