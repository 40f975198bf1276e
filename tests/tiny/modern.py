"""Decoders since 2023: two layers of two heads, one with a window where a family has windows."""

from typing import Any

from tests.tiny.decoders import EVEN, LLAMA

MIXED: dict[str, Any] = {
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention"],
}

YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}

CAPS: dict[str, Any] = {
    "query_pre_attn_scalar": 24,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 3.0,
}

FACTORS: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}

QWEN3 = LLAMA | {"model_type": "qwen3"}
SMOLLM3 = EVEN | {"model_type": "smollm3", "no_rope_layers": [1, 0]}
GEMMA = LLAMA | {"model_type": "gemma"}
GEMMA2 = LLAMA | MIXED | CAPS | {"model_type": "gemma2"}
GEMMA3 = (
    LLAMA
    | MIXED
    | {
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": 24,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    }
)
OLMO = EVEN | {"model_type": "olmo", "clip_qkv": 0.8}
OLMO2 = EVEN | {"model_type": "olmo2"}
GRANITE = EVEN | FACTORS | {"model_type": "granite"}
GRANITE_SWA = EVEN | MIXED | FACTORS | {"model_type": "granite_swa", "layer_rope_theta": [100.0, 0]}
COHERE = EVEN | {"model_type": "cohere"}
COHERE2 = EVEN | MIXED | {"model_type": "cohere2"}
PHI3 = EVEN | {"model_type": "phi3"}
SEED_OSS = LLAMA | {"model_type": "seed_oss"}
MINISTRAL3 = LLAMA | {
    "model_type": "ministral3",
    "rope_parameters": YARN | {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 96},
}
ERNIE4_5 = LLAMA | {"model_type": "ernie4_5"}
HUNYUAN = LLAMA | {"model_type": "hunyuan_v1_dense"}
NEMOTRON = LLAMA | {"model_type": "nemotron", "head_dim": 32}
ARCEE = LLAMA | {"model_type": "arcee"}
NANOCHAT = EVEN | {"model_type": "nanochat", "final_logit_softcapping": 3.0}
BITNET = EVEN | {"model_type": "bitnet"}

LATENT: dict[str, Any] = EVEN | {
    "num_key_value_heads": 2,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 12,
}
YOUTU = LATENT | {"model_type": "youtu"}
MINICPM3 = LATENT | {"model_type": "minicpm3", "dim_model_base": 16, "scale_emb": 3}

_EXPERTS: dict[str, Any] = {
    "num_hidden_layers": 3,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.5,
    "n_group": 4,
    "topk_group": 2,
}
DEEPSEEK_V3 = LATENT | _EXPERTS | {"model_type": "deepseek_v3", "first_k_dense_replace": 1}
DEEPSEEK_V2 = DEEPSEEK_V3 | {"model_type": "deepseek_v2", "topk_method": "greedy"}
GLM4_MOE_LITE = LATENT | _EXPERTS | {"model_type": "glm4_moe_lite"}

_ALL = (
    *(QWEN3, SMOLLM3, GEMMA, GEMMA2, GEMMA3, OLMO, OLMO2, GRANITE, GRANITE_SWA),
    *(COHERE, COHERE2, PHI3, SEED_OSS, MINISTRAL3, ERNIE4_5, HUNYUAN, NEMOTRON),
    *(ARCEE, NANOCHAT, BITNET, YOUTU, MINICPM3, DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE),
)

MODERN: dict[str, dict[str, Any]] = {values["model_type"]: values for values in _ALL}
