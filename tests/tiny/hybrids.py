"""Decoders some of whose layers have another mixer than attention: one of each kind."""

from typing import Any

from tests.tiny.modern import EVEN

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

_ALL: tuple[dict[str, Any], ...] = (LFM2, QWEN3_5)

HYBRIDS: dict[str, dict[str, Any]] = {values["model_type"]: values for values in _ALL}
