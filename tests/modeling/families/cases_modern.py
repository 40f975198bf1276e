"""Cases of the decoders since 2023: each family, and each option that it reads."""

from typing import Any

from tests.tiny import modern
from tests.tiny.modern import LLAMA3, MIXED, MODERN, YARN

BIASED = {"attention_bias": True}

NO_WINDOW: dict[str, Any] = {"sliding_window": None, "layer_types": ["full_attention"] * 2}

LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
}

ALPHA: dict[str, Any] = {"rope_type": "dynamic", "rope_theta": 500.0, "alpha": 30.0, "factor": 1.0}

VALUES: dict[str, dict[str, Any]] = {
    **MODERN,
    "qwen3-windowed": modern.QWEN3 | MIXED | {"use_sliding_window": True, "head_dim": 24},
    "qwen3-biased": modern.QWEN3 | BIASED | {"rms_norm_eps": 0.3, "tie_word_embeddings": True},
    "smollm3-windowed": modern.SMOLLM3 | BIASED | {"use_sliding_window": True, "sliding_window": 7},
    "smollm3-interval": modern.SMOLLM3
    | {"no_rope_layers": None, "no_rope_layer_interval": 2, "mlp_bias": True},
    "gemma-biased": modern.GEMMA | BIASED | {"hidden_act": "gelu"},
    "gemma2-uncapped": modern.GEMMA2
    | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "layer_types": None},
    "gemma2-biased": modern.GEMMA2 | BIASED | {"hidden_activation": "silu"},
    "gemma3-capped": modern.GEMMA3
    | {"final_logit_softcapping": 3.0, "tie_word_embeddings": False, "attention_bias": True},
    "gemma3-period": modern.GEMMA3 | {"layer_types": None, "num_hidden_layers": 6},
    "olmo-unbounded": modern.OLMO | BIASED | {"clip_qkv": None},
    "olmo2-biased": modern.OLMO2 | BIASED | {"rms_norm_eps": 0.3},
    "olmo3-period": modern.OLMO3 | {"layer_types": None, "num_hidden_layers": 4},
    "exaone4-no-window": modern.EXAONE4 | NO_WINDOW,
    "granite-biased": modern.GRANITE | BIASED | {"mlp_bias": True},
    "granite_swa-one-base": modern.GRANITE_SWA | {"layer_rope_theta": None, "layer_types": None},
    "hyperclovax-pre-norm": modern.HYPERCLOVAX | {"use_post_norm": False},
    "hyperclovax-unscaled": modern.HYPERCLOVAX | {"attention_multiplier": None},
    "cohere-values": modern.COHERE | BIASED | {"logit_scale": 0.3, "layer_norm_eps": 0.3},
    "cohere2-biased": modern.COHERE2 | BIASED | {"layer_types": None, "num_hidden_layers": 4},
    "glm-unbiased": modern.GLM | {"attention_bias": False, "head_dim": 24},
    "phi3-window": modern.PHI3 | {"sliding_window": 7, "tie_word_embeddings": True},
    "phi3-partial": modern.PHI3 | {"partial_rotary_factor": 0.75, "hidden_size": 128},
    "seed_oss-values": modern.SEED_OSS
    | {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
    "cwm-period": modern.CWM | {"layer_types": None, "num_hidden_layers": 5, "mlp_bias": True},
    "ministral-all-windows": modern.MINISTRAL | {"layer_types": None},
    "ministral3-window": modern.MINISTRAL3 | {"sliding_window": 7},
    "internlm3-biased": modern.INTERNLM3 | BIASED | {"mlp_bias": True},
    "iquestcoder-biased": modern.IQUESTCODER | BIASED | {"mlp_bias": True},
    "ernie4_5-biased": modern.ERNIE4_5 | {"use_bias": True, "rope_parameters": YARN},
    "helium-biased": modern.HELIUM | BIASED | {"mlp_bias": True, "rope_parameters": LLAMA3},
    "hunyuan-alpha": modern.HUNYUAN | BIASED | {"rope_parameters": ALPHA},
    "nemotron-biased": modern.NEMOTRON | BIASED | {"mlp_bias": True, "norm_eps": 0.3},
    "nemotron-quarter": modern.NEMOTRON | {"partial_rotary_factor": 0.25, "hidden_act": "gelu"},
    "arcee-biased": modern.ARCEE | BIASED | {"mlp_bias": True},
    "jais2-unbiased": modern.JAIS2 | {"attention_bias": False, "mlp_bias": False},
    "nanochat-uncapped": modern.NANOCHAT | {"final_logit_softcapping": None},
    "bitnet-biased": modern.BITNET | BIASED,
    "youtu-one-product": modern.YOUTU | {"q_lora_rank": None, "rope_interleave": False},
    "youtu-biased": modern.YOUTU
    | BIASED
    | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}},
    "deepseek_v2-one-product": modern.DEEPSEEK_V2
    | BIASED
    | {"q_lora_rank": None, "first_k_dense_replace": 0, "mlp_bias": False},
    "deepseek_v3-yarn": modern.DEEPSEEK_V3
    | BIASED
    | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, "norm_topk_prob": False},
    "deepseek_v3-halves": modern.DEEPSEEK_V3
    | {"rope_interleave": False, "q_lora_rank": None, "first_k_dense_replace": 2, "topk_group": 4},
    "glm4_moe_lite-kinds": modern.GLM4_MOE_LITE
    | {"mlp_layer_types": ["sparse", "dense", "sparse"], "topk_group": 4},
    "minicpm3-unscaled": modern.MINICPM3
    | {"scale_depth": None, "dim_model_base": None, "v_head_dim": None, "mlp_bias": True},
}

_LONG = modern.PHI3 | {"rope_parameters": LONGROPE, "original_max_position_embeddings": 48}

CASES: dict[str, dict[str, Any]] = {
    **{name: {"values": values} for name, values in VALUES.items()},
    # transformers changes the angles of a cache when a text grows long: it disagrees with itself.
    "phi3-long": {"values": _LONG, "generates": False, "max_context": 96},
    "phi3-short": {"values": _LONG, "length": 40, "max_context": 48},
}
"""The arguments of a `test_parity.Case` each."""
