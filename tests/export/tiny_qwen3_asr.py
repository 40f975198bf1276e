"""A Qwen3-ASR with random weights, a tokenizer, a chat template and a feature extractor."""

import json
from pathlib import Path
from typing import Any

from tests.export import tiny_models
from tests.modeling.tiny_models import reference_model
from tests.tiny.encoders import QWEN3_ASR

BINS, RATE = 10, 16_000

WINDOW = 48_000
"""Samples that the encoder sees at once."""

SPECIAL = ("<|audio_start|>", "<|audio_end|>", "<|audio_pad|>", "<|im_end|>")

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'audio' %}<|audio_start|><|audio_pad|>"
    "<|audio_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def write(folder: Path, **extractor: Any) -> None:
    """Write the checkpoint; `extractor` changes the keys of its feature extractor."""
    tokenizer = tiny_models.tokenizer()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens(["<asr_text>"])
    text = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 400}
    values = QWEN3_ASR | {
        "audio_token_id": tokenizer.token_to_id("<|audio_pad|>"),
        "text_config": QWEN3_ASR["text_config"] | text,
    }
    model = reference_model(values, architecture="Qwen3ASRForConditionalGeneration")
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    keys = {
        "feature_extractor_type": "Qwen3ASRFeatureExtractor",
        "feature_size": BINS,
        "sampling_rate": RATE,
        "chunk_length": 30,
        "n_window": 50,
        **extractor,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(keys))
