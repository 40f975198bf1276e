"""A LLaVA with random weights, a tokenizer, a chat template and a processor of images."""

import json
from pathlib import Path

from tests.export import tiny_models
from tests.modeling.tiny_models import reference_model
from tests.tiny.encoders import LLAVA

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}</s>{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)

VECTORS = 16
"""Vectors of an image of 8 by 8 pixels, in patches of 2."""


def write(folder: Path) -> None:
    """Write the checkpoint."""
    tokenizer = tiny_models.tokenizer()
    tokenizer.add_special_tokens(["<image>"])
    size = tokenizer.get_vocab_size()
    values = LLAVA | {
        "image_token_index": tokenizer.token_to_id("<image>"),
        "text_config": LLAVA["text_config"] | {"vocab_size": size, "max_position_embeddings": 400},
    }
    model = reference_model(values, architecture="LlavaForConditionalGeneration")
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    sizes = {"size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}}
    processor = {"image_processor_type": "CLIPImageProcessor", **sizes}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
