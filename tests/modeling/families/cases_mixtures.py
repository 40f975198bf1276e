"""Cases of mixtures of experts: each family, and each option that it reads."""

from typing import Any

from tests.modeling.families.cases_modern import LONGROPE
from tests.tiny import mixtures
from tests.tiny.mixtures import MIXTURES

BIASED = {"attention_bias": True}

ALL_ALIKE = {"n_group": 1, "topk_group": 1}

_STRETCHED = mixtures.PHIMOE | {
    "rope_parameters": LONGROPE | {"short_mscale": 1.3, "long_mscale": 1.3},
    "original_max_position_embeddings": 48,
}

VALUES: dict[str, dict[str, Any]] = {
    **MIXTURES,
    "mixtral-window": mixtures.MIXTRAL | {"sliding_window": 7, "num_experts_per_tok": 3},
    "qwen2_moe-normalised": mixtures.QWEN2_MOE | {"norm_topk_prob": True, "qkv_bias": False},
    "qwen2_moe-dense-layer": mixtures.QWEN2_MOE | {"mlp_only_layers": [0]},
    "qwen2_moe-windowed": mixtures.QWEN2_MOE
    | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    "qwen3_moe-not-normalised": mixtures.QWEN3_MOE | BIASED | {"norm_topk_prob": False},
    "qwen3_moe-sparse-step": mixtures.QWEN3_MOE | {"decoder_sparse_step": 2},
    "qwen3_moe-windowed": mixtures.QWEN3_MOE | {"use_sliding_window": True, "sliding_window": 7},
    "olmoe-normalised": mixtures.OLMOE | BIASED | {"norm_topk_prob": True},
    "flex_olmo-normalised": mixtures.FLEX_OLMO | BIASED | {"norm_topk_prob": True},
    "phimoe-biased": mixtures.PHIMOE
    | BIASED
    | {"lm_head_bias": True, "router_jitter_noise": 0.01, "sliding_window": 7},
    "granitemoe-biased": mixtures.GRANITEMOE | BIASED,
    "granitemoeshared-unshared": mixtures.GRANITEMOESHARED | {"shared_intermediate_size": 0},
    "gpt_oss-unbiased": mixtures.GPT_OSS | {"attention_bias": False, "layer_types": None},
    "gpt_oss-values": mixtures.GPT_OSS | {"swiglu_alpha": 0.7, "swiglu_limit": 2.0},
    "ernie4_5_moe-interval": mixtures.ERNIE4_5_MOE
    | {"num_hidden_layers": 4, "moe_layer_start_index": 0, "moe_layer_interval": 2},
    "ernie4_5_moe-unshared": mixtures.ERNIE4_5_MOE
    | {"moe_num_shared_experts": 0, "moe_layer_end_index": 1},
    "glm4_moe-normed": mixtures.GLM4_MOE | ALL_ALIKE | BIASED | {"use_qk_norm": True},
    "glm4_moe-not-normalised": mixtures.GLM4_MOE
    | {"norm_topk_prob": False, "first_k_dense_replace": 0},
    "dots1-windowed": mixtures.DOTS1 | BIASED | {"sliding_window": 7, "max_window_layers": 1},
    "dots1-normalised": mixtures.DOTS1 | ALL_ALIKE | {"norm_topk_prob": True},
    "solar_open-biased": mixtures.SOLAR_OPEN | BIASED | {"norm_topk_prob": False},
    "exaone_moe-pattern": mixtures.EXAONE_MOE
    | {"layer_types": None, "num_hidden_layers": 4, "mlp_layer_types": ["sparse", "dense"] * 2},
    "minimax_m2-partial": mixtures.MINIMAX_M2 | {"head_dim": 32, "rotary_dim": 16},
    "granitemoe_swa-unshared": mixtures.GRANITEMOE_SWA
    | BIASED
    | {"shared_intermediate_size": 0, "layer_rope_theta": None},
    "hunyuan_v1_moe-biased": mixtures.HUNYUAN_V1_MOE | BIASED | {"moe_topk": 1},
}

CASES: dict[str, dict[str, Any]] = {
    **{name: {"values": values} for name, values in VALUES.items()},
    "phimoe-stretched": {"values": _STRETCHED, "length": 40},
}
"""The arguments of a `test_parity.Case` each."""
