"""A Qwen3-VL or Qwen 3.5 with random weights, a tokenizer, a chat template and a processor."""

from pathlib import Path
from typing import Any

from tests.tiny.checkpoints import write_checkpoint
from tests.tiny.encoders import QWEN3_VL
from tests.tiny.tokenizers import of_characters

START, PAD, END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}"
    f"{START}{PAD}{END}"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}</s>{% endfor %}"
    "{% if add_generation_prompt %}A:{% endif %}"
)

LEAST, MOST = 2 * 8 * 8, 24 * 8 * 8
"""Pixels of an image: 2 to 24 squares of 2 by 2 patches of 4 pixels."""

CONTEXT = 512


def write(folder: Path, values: dict[str, Any] = QWEN3_VL, **text: Any) -> None:
    """Write the checkpoint; `text` changes the language model."""
    tokenizer = of_characters()
    tokenizer.add_special_tokens([START, PAD, END])
    values = values | {
        "image_token_id": tokenizer.token_to_id(PAD),
        "vision_start_token_id": tokenizer.token_to_id(START),
        "vision_end_token_id": tokenizer.token_to_id(END),
        "text_config": values["text_config"] | {"max_position_embeddings": CONTEXT} | text,
    }
    processor = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": 4,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": LEAST, "longest_edge": MOST},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    write_checkpoint(folder, values, tokenizer, template=TEMPLATE, processor=processor)
