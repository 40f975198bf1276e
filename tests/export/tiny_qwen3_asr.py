"""A Qwen3-ASR with random weights, a tokenizer, a chat template and a feature extractor."""

from pathlib import Path
from typing import Any

from tests.tiny.encoders import QWEN3_ASR
from tests.tiny.media import write_checkpoint
from tests.tiny.tokenizers import of_characters

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
    tokenizer = of_characters()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens(["<asr_text>"])
    values = QWEN3_ASR | {
        "audio_token_id": tokenizer.token_to_id("<|audio_pad|>"),
        "text_config": QWEN3_ASR["text_config"] | {"max_position_embeddings": 400},
    }
    keys = {
        "feature_extractor_type": "Qwen3ASRFeatureExtractor",
        "feature_size": BINS,
        "sampling_rate": RATE,
        "chunk_length": 30,
        "n_window": 50,
        **extractor,
    }
    write_checkpoint(folder, values, tokenizer, template=TEMPLATE, processor=keys)
