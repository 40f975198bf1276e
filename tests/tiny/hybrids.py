"""Decoders some of whose layers have another mixer than attention: one of each kind."""

from typing import Any

from tests.tiny.decoders import EVEN, NO_TOKENS, VOCABULARY
from tests.tiny.modern import FACTORS

LFM2 = EVEN | {
    "model_type": "lfm2",
    "layer_types": ["conv", "full_attention"],
    "block_multiple_of": 16,
}
QWEN3_5 = EVEN | {
    "model_type": "qwen3_5_text",
    "head_dim": 64,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}

MAMBA: dict[str, Any] = {
    "model_type": "mamba",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "state_size": 4,
    "num_hidden_layers": 2,
    **NO_TOKENS,
}
FALCON_MAMBA = MAMBA | {"model_type": "falcon_mamba"}
MAMBA2 = MAMBA | {"model_type": "mamba2", "num_heads": 4, "head_dim": 16, "n_groups": 2}
GRANITE = (
    EVEN
    | FACTORS
    | {
        "model_type": "granitemoehybrid",
        "layer_types": ["linear_attention", "full_attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 48,
        "mamba_n_heads": 4,
        "mamba_d_state": 8,
    }
)
RECURRENT_GEMMA = EVEN | {
    "model_type": "recurrent_gemma",
    "hidden_size": 64,
    "lru_width": 48,
    "attention_window_size": 7,
    "block_types": ["recurrent", "attention"],
}

_ALL = (LFM2, QWEN3_5, MAMBA, FALCON_MAMBA, MAMBA2, GRANITE, RECURRENT_GEMMA)

HYBRIDS: dict[str, dict[str, Any]] = {values["model_type"]: values for values in _ALL}
