"""SmolVLM and Idefics3 with random weights, a tokenizer, a chat template and an image processor."""

import json
from pathlib import Path
from typing import Any

from tests.export import tiny_models
from tests.export.tiny_llava import TEMPLATE
from tests.modeling.tiny_models import reference_model
from tests.tiny.encoders import IDEFICS3, SMOLVLM

SIDE = 8
"""Pixels of a tile."""

VALUES = {"idefics3": IDEFICS3, "smolvlm": SMOLVLM}

_AROUND = ("<fake_token_around_image>", "<global-img>", "<end_of_utterance>")

SPECIAL = ("<image>", *_AROUND, *(f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7)))


def write(folder: Path, model_type: str, **processor: Any) -> None:
    """Write the checkpoint; `processor` changes the keys of its image processor."""
    tokenizer = tiny_models.tokenizer()
    tokenizer.add_tokens(["\n", "\n\n"])
    tokenizer.add_special_tokens(list(SPECIAL))
    values = VALUES[model_type]
    text = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 800}
    values = values | {
        "image_token_id": tokenizer.token_to_id("<image>"),
        "text_config": values["text_config"] | text,
    }
    model = reference_model(values, architecture=values["architectures"][0])
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    name = {"idefics3": "Idefics3", "smolvlm": "SmolVLM"}[model_type]
    keys = {
        "image_processor_type": f"{name}ImageProcessor",
        "size": {"longest_edge": 4 * SIDE},
        "max_image_size": {"longest_edge": SIDE},
        "do_pad": True,
        "return_row_col_info": False,
        **processor,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(keys))
