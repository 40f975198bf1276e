"""Older decoders: two layers of two heads."""

from typing import Any

from tests.tiny.decoders import EVEN, GPT2, NO_TOKENS, SMALL, VOCABULARY

_WIDE = SMALL | {"intermediate_size": 48}

_ROPE = {"rope_type": "default", "rope_theta": 500.0}

_KINDS: dict[str, dict[str, Any]] = {
    "opt": SMALL | {"ffn_dim": 48},
    "biogpt": _WIDE,
    "xglm": {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "ffn_dim": 48,
        "num_layers": 2,
        "attention_heads": 2,
        "max_position_embeddings": 96,
        **NO_TOKENS,
    },
    "gpt_neo": {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 2,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 7,
        "max_position_embeddings": 96,
        **NO_TOKENS,
    },
    "starcoder2": EVEN | {"sliding_window": 7},
    "stablelm": EVEN | {"partial_rotary_factor": 1.0},
    "phi": EVEN | {"partial_rotary_factor": 1.0},
    "gpt_neox": _WIDE | {"rotary_pct": 1.0},
    "gpt_neox_japanese": SMALL | {"rotary_pct": 1.0, "intermediate_multiple_size": 2},
    "gptj": GPT2 | {"rotary_dim": 16},
    "codegen": GPT2 | {"rotary_dim": 16, "n_embd": 64, "n_head": 4},
    "bloom": {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "n_layer": 2,
        "n_head": 2,
        "seq_length": 96,
        **NO_TOKENS,
    },
    "falcon": SMALL,
    "mpt": {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 2,
        "max_seq_len": 96,
        **NO_TOKENS,
    },
    "persimmon": _WIDE | {"hidden_size": 64},
    "openai-gpt": GPT2,
    "apertus": EVEN | {"rope_parameters": _ROPE},
    "modernbert-decoder": _WIDE
    | {"local_attention": 14, "local_rope_theta": 500.0}
    | {"eos_token_id": 2, "pad_token_id": 1, "bos_token_id": 0},
}

CLASSICS = {name: values | {"model_type": name} for name, values in _KINDS.items()}
