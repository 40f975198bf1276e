"""Cases of the decoders with other mixers than attention: families and their options."""

from typing import Any

from tests.tiny import hybrids
from tests.tiny.hybrids import HYBRIDS

CASES: dict[str, dict[str, Any]] = {
    **HYBRIDS,
    "lfm2-biased": hybrids.LFM2 | {"conv_bias": True, "conv_L_cache": 4, "norm_eps": 0.3},
    "lfm2-adjusted": hybrids.LFM2
    | {"block_ffn_dim_multiplier": 1.7, "layer_types": None, "full_attn_idxs": [0]},
    "lfm2-plain": hybrids.LFM2 | {"block_auto_adjust_ff_dim": False, "tie_word_embeddings": False},
    "qwen3_5-biased": hybrids.QWEN3_5 | {"attention_bias": True, "rms_norm_eps": 0.3},
    "qwen3_5-period": hybrids.QWEN3_5
    | {"layer_types": None, "num_hidden_layers": 4, "tie_word_embeddings": True},
    "qwen3_5-unshared": hybrids.QWEN3_5 | {"linear_num_key_heads": 4, "linear_conv_kernel_dim": 3},
}
"""The values of a `test_parity.Case` each."""
