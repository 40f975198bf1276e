"""Decoders: two layers of two heads."""

from typing import Any

VOCABULARY = 97

NO_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 96,
    **NO_TOKENS,
}

LLAMA: dict[str, Any] = SMALL | {
    "model_type": "llama",
    "intermediate_size": 48,
    "num_key_value_heads": 1,
    "head_dim": 16,
}

EVEN: dict[str, Any] = {key: value for key, value in LLAMA.items() if key != "head_dim"}
"""For families that have no width of heads of their own."""

GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_head": 2,
    "n_layer": 2,
    "n_positions": 96,
    **NO_TOKENS,
}

_ALL: tuple[dict[str, Any], ...] = (
    LLAMA,
    GPT2,
    LLAMA | {"model_type": "mistral", "sliding_window": 7},
    LLAMA | {"model_type": "qwen2"},
)

DECODERS: dict[str, dict[str, Any]] = {values["model_type"]: values for values in _ALL}
