"""Cases of the decoders with other mixers than attention: families and their options."""

from typing import Any

from tests.tiny import hybrids
from tests.tiny.hybrids import HYBRIDS

VALUES: dict[str, dict[str, Any]] = {
    **HYBRIDS,
    "lfm2-biased": hybrids.LFM2 | {"conv_bias": True, "conv_L_cache": 4, "norm_eps": 0.3},
    "lfm2-adjusted": hybrids.LFM2
    | {"block_ffn_dim_multiplier": 1.7, "layer_types": None, "full_attn_idxs": [0]},
    "lfm2-plain": hybrids.LFM2 | {"block_auto_adjust_ff_dim": False, "tie_word_embeddings": False},
    "qwen3_5-biased": hybrids.QWEN3_5 | {"attention_bias": True, "rms_norm_eps": 0.3},
    "qwen3_5-period": hybrids.QWEN3_5
    | {"layer_types": None, "num_hidden_layers": 4, "tie_word_embeddings": True},
    "qwen3_5-unshared": hybrids.QWEN3_5 | {"linear_num_key_heads": 4, "linear_conv_kernel_dim": 3},
    "mamba-values": hybrids.MAMBA
    | {"use_bias": True, "use_conv_bias": False, "time_step_rank": 5, "expand": 3},
    "mamba-untied": hybrids.MAMBA | {"tie_word_embeddings": False, "layer_norm_epsilon": 0.3},
    "falcon_mamba-eps": hybrids.FALCON_MAMBA | {"mixer_rms_eps": 0.3, "conv_kernel": 3},
    "mamba2-values": hybrids.MAMBA2
    | {"use_bias": True, "use_conv_bias": False, "n_groups": 1, "tie_word_embeddings": True},
    "mamba2-relu": hybrids.MAMBA2 | {"hidden_act": "relu", "layer_norm_epsilon": 0.3},
    "granitemoehybrid-rotary": hybrids.GRANITE
    | {"position_embedding_type": "rope", "mamba_conv_bias": False, "mamba_n_groups": 2},
    "granitemoehybrid-biased": hybrids.GRANITE
    | {"mamba_proj_bias": True, "attention_bias": True, "layer_types": ["mamba", "attention"]},
    "granitemoehybrid-experts": hybrids.GRANITE
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 24},
    "recurrent_gemma-values": hybrids.RECURRENT_GEMMA
    | {"attention_bias": True, "num_hidden_layers": 3, "lru_width": None, "conv1d_width": 3},
}

CASES: dict[str, dict[str, Any]] = {
    **{name: {"values": values} for name, values in VALUES.items()},
    # A step of transformers by itself knows no bounds: it disagrees with a whole text.
    "mamba2-bounded": {
        "values": hybrids.MAMBA2 | {"time_step_limit": [0.3, 0.9]},
        "generates": False,
    },
}
"""The arguments of a `test_parity.Case` each."""
