"""Tiny Gemma 3: a tokenizer that joins line breaks, a chat template and an image processor too."""

from pathlib import Path
from typing import Any

from tests.tiny.checkpoints import write_checkpoint
from tests.tiny.encoders import GEMMA3
from tests.tiny.tokenizers import of_characters
from tokenizers import Tokenizer

SIDE = 16
"""Pixels of an image."""

VECTORS = 16
"""Vectors of an image."""

SPECIAL = (
    *("<start_of_turn>", "<end_of_turn>"),
    *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
)

NAMED = {
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}
"""Names under which transformers' processor looks for tokens."""

TEMPLATE = (
    "{% for m in messages %}<start_of_turn>{{ m.role }}\n{% if m.content is string %}"
    "{{ m.content }}{% else %}{% for part in m.content %}{% if part.type == 'image' %}"
    "<start_of_image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def tokenizer() -> Tokenizer:
    """One token per ASCII character, and one for up to four line breaks."""
    breaks = ["\n" * count for count in range(1, 5)]
    merges = [("\n", "\n"), ("\n\n", "\n\n"), ("\n\n", "\n")]
    own = of_characters(("<pad>", "<eos>", "<bos>"), breaks, merges)
    own.add_special_tokens(["<pad>", "<eos>", "<bos>", *SPECIAL])
    return own


def write(folder: Path, *, text: dict[str, Any] | None = None, **processor: Any) -> None:
    """Write the checkpoint.

    Args:
        folder: where to.
        text: changes to the config of the language model.
        processor: changes to the keys of the image processor.
    """
    own = tokenizer()
    values = GEMMA3 | {
        "image_token_index": own.token_to_id("<image_soft_token>"),
        "boi_token_index": own.token_to_id("<start_of_image>"),
        "eoi_token_index": own.token_to_id("<end_of_image>"),
        "text_config": GEMMA3["text_config"] | {"max_position_embeddings": 800} | (text or {}),
    }
    keys = {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": SIDE, "width": SIDE},
        "image_seq_length": VECTORS,
        "do_pan_and_scan": None,
    }
    write_checkpoint(folder, values, own, template=TEMPLATE, processor=keys | processor)
