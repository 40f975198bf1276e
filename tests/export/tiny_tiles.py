"""Tiny models that read tiles, each with a tokenizer, a chat template and an image processor."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.export import tiny_models
from tests.export.tiny_llava import TEMPLATE
from tests.modeling.tiny_models import reference_model
from tests.tiny.encoders import IDEFICS3, INTERNVL, LFM2_VL, SMOLVLM

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
    tokenizer = tiny_models.tokenizer()
    tokenizer.add_tokens(["\n", "\n\n"])
    tokenizer.add_special_tokens(list(SPECIAL))
    values = VALUES[model_type]
    text = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 800}
    values = values | {
        "image_token_id": tokenizer.token_to_id(PLACEHOLDERS[model_type]),
        "text_config": values["text_config"] | text,
        "vision_config": values["vision_config"] | (tower or {}),
    }
    model = reference_model(values, architecture=values["architectures"][0])
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = TEMPLATE.replace("<image>", PLACEHOLDERS[model_type])
    (folder / "chat_template.jinja").write_text(template)
    keys = PROCESSORS[model_type] | processor
    (folder / "preprocessor_config.json").write_text(json.dumps(keys))
