"""Tiny models that read tiles, each with a tokenizer, a chat template and an image processor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.export.tiny_llava import TEMPLATE
from tests.tiny.checkpoints import write_checkpoint
from tests.tiny.encoders import IDEFICS3, INTERNVL, LFM2_VL, SMOLVLM
from tests.tiny.tokenizers import of_characters

SIDE = 8
"""Pixels of a tile."""

VALUES = {
    "idefics3": IDEFICS3,
    "internvl": INTERNVL,
    "lfm2_vl": LFM2_VL,
    "smolvlm": SMOLVLM,
}

PLACEHOLDERS = {
    "idefics3": "<image>",
    "internvl": "<IMG_CONTEXT>",
    "lfm2_vl": "<image>",
    "smolvlm": "<image>",
}
"""Token that stands for an image in a text, and for each of its vectors."""

_AROUND = ("<fake_token_around_image>", "<global-img>", "<end_of_utterance>")

SPECIAL = (
    *("<image>", *_AROUND, *(f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7))),
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
    tokenizer.add_special_tokens(list(SPECIAL))
    values = VALUES[model_type]
    values = values | {
        "image_token_id": tokenizer.token_to_id(PLACEHOLDERS[model_type]),
        "text_config": values["text_config"] | {"max_position_embeddings": 800},
        "vision_config": values["vision_config"] | (tower or {}),
    }
    template = TEMPLATE.replace("<image>", PLACEHOLDERS[model_type])
    keys = PROCESSORS[model_type] | processor
    write_checkpoint(folder, values, tokenizer, template=template, processor=keys)
