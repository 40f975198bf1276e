"""Older decoders: two layers of two heads."""

from typing import Any

from tests.tiny.decoders import GPT2, LLAMA, NO_TOKENS, VOCABULARY

OPT: dict[str, Any] = {
    "model_type": "opt",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "ffn_dim": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 96,
    **NO_TOKENS,
}

BIOGPT: dict[str, Any] = {
    "model_type": "biogpt",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 96,
    **NO_TOKENS,
}

XGLM: dict[str, Any] = {
    "model_type": "xglm",
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "ffn_dim": 48,
    "num_layers": 2,
    "attention_heads": 2,
    "max_position_embeddings": 96,
    **NO_TOKENS,
}

GPT_NEO: dict[str, Any] = {
    "model_type": "gpt_neo",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 2,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 7,
    "max_position_embeddings": 96,
    **NO_TOKENS,
}

STARCODER2: dict[str, Any] = {
    key: value for key, value in LLAMA.items() if key not in ("model_type", "head_dim")
} | {"model_type": "starcoder2", "sliding_window": 7}

STABLELM = STARCODER2 | {"model_type": "stablelm", "partial_rotary_factor": 1.0}
del STABLELM["sliding_window"]

APERTUS: dict[str, Any] = {
    key: value for key, value in LLAMA.items() if key not in ("model_type", "head_dim")
} | {"model_type": "apertus", "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}

MODERNBERT_DECODER: dict[str, Any] = {
    "model_type": "modernbert-decoder",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 96,
    "local_attention": 14,
    "local_rope_theta": 500.0,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "bos_token_id": 0,
}

GPT_BIGCODE = GPT2 | {"model_type": "gpt_bigcode"}

PHI = STABLELM | {"model_type": "phi"}

GPT_NEOX: dict[str, Any] = {
    "model_type": "gpt_neox",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 96,
    "rotary_pct": 1.0,
    **NO_TOKENS,
}

GPT_NEOX_JAPANESE: dict[str, Any] = {
    key: value for key, value in GPT_NEOX.items() if key != "intermediate_size"
} | {"model_type": "gpt_neox_japanese", "intermediate_multiple_size": 2}

GPTJ = GPT2 | {"model_type": "gptj", "rotary_dim": 16}

CODEGEN = GPTJ | {"model_type": "codegen", "n_embd": 64, "n_head": 4}

BLOOM: dict[str, Any] = {
    "model_type": "bloom",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "n_layer": 2,
    "n_head": 2,
    "seq_length": 96,
    **NO_TOKENS,
}

FALCON: dict[str, Any] = {
    "model_type": "falcon",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 96,
    **NO_TOKENS,
}

MPT: dict[str, Any] = {
    "model_type": "mpt",
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 2,
    "max_seq_len": 96,
    **NO_TOKENS,
}

PERSIMMON: dict[str, Any] = {
    "model_type": "persimmon",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 96,
    **NO_TOKENS,
}

OPENAI_GPT = GPT2 | {"model_type": "openai-gpt"}

CTRL = GPT2 | {"model_type": "ctrl", "dff": 48}

_ALL: tuple[dict[str, Any], ...] = (
    *(OPT, BIOGPT, XGLM, GPT_NEO, STARCODER2, STABLELM, GPT_BIGCODE, PHI, GPT_NEOX),
    *(GPT_NEOX_JAPANESE, GPTJ, CODEGEN, BLOOM, FALCON, MPT, PERSIMMON, OPENAI_GPT, CTRL, APERTUS),
    MODERNBERT_DECODER,
)

CLASSICS: dict[str, dict[str, Any]] = {values["model_type"]: values for values in _ALL}
