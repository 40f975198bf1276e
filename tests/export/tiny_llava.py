"""A LLaVA with random weights, a tokenizer, a chat template and a processor of images."""

from pathlib import Path

from tests.tiny.checkpoints import write_checkpoint
from tests.tiny.encoders import LLAVA
from tests.tiny.tokenizers import of_characters

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}</s>{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)

VECTORS = 16
"""Vectors of an image of 8 by 8 pixels, in patches of 2."""


def write(folder: Path) -> None:
    """Write the checkpoint."""
    tokenizer = of_characters()
    tokenizer.add_special_tokens(["<image>"])
    text = LLAVA["text_config"] | {"max_position_embeddings": 400}
    token = tokenizer.token_to_id("<image>")
    sizes = {"size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}}
    write_checkpoint(
        folder,
        LLAVA | {"image_token_index": token, "text_config": text},
        tokenizer,
        template=TEMPLATE,
        processor={"image_processor_type": "CLIPImageProcessor", **sizes},
    )
