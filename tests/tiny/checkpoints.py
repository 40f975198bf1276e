"""Checkpoint folders of transformers, with random weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.modeling.tiny_models import reference_model
from tokenizers import Tokenizer
from transformers import PreTrainedModel


def write_checkpoint(
    folder: Path,
    values: Mapping[str, Any],
    tokenizer: Tokenizer,
    *,
    template: str,
    processor: Mapping[str, Any],
) -> PreTrainedModel:
    """Write a model that reads images or sounds, and return it.

    Args:
        folder: where to.
        values: of config.json, with one class in `architectures`.
        tokenizer: gives the size of the vocabulary.
        template: of chats.
        processor: keys of preprocessor_config.json.
    """
    sizes = {"vocab_size": tokenizer.get_vocab_size()}
    values = {**values, "text_config": values["text_config"] | sizes}
    model = reference_model(values, architecture=values["architectures"][0])
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model
