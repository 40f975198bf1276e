"""Random images, and checkpoints of decoders that read images or sounds."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tests.cases import NEW
from tests.modeling.tiny_models import reference_model
from tokenizers import Tokenizer
from transformers import PreTrainedModel

Pixels = NDArray[np.uint8]


def picture(height: int = 8, width: int = 8, channels: int = 3, *, seed: int = 0) -> Pixels:
    """Noise."""
    generator = np.random.default_rng((height, width, seed))
    return generator.integers(0, 256, (height, width, channels)).astype(np.uint8)


def png(pixels: Pixels) -> bytes:
    """The file of a picture."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def answer_of(reference: Any, given: Mapping[str, Any], **options: Any) -> list[int]:
    """The `NEW` tokens that a model of transformers generates."""
    ends: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0}
    ids: list[int] = reference.generate(
        **given, **ends, max_new_tokens=NEW, do_sample=False, **options
    )[0].tolist()
    return ids[-NEW:]


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
