"""Decoders with mixtures of experts: two layers of two heads, four experts."""

from typing import Any

from tests.tiny.decoders import EVEN, LLAMA
from tests.tiny.modern import FACTORS, MIXED, YARN

_FOUR: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

_WHOLE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}

_LOCAL: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 32,
}

_GROUPS: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}

MIXTRAL = LLAMA | _LOCAL | {"model_type": "mixtral"}
QWEN2_MOE = EVEN | _FOUR | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 48}
QWEN3_MOE = LLAMA | _FOUR | {"model_type": "qwen3_moe", "norm_topk_prob": True}
OLMOE = EVEN | _WHOLE | {"model_type": "olmoe"}
FLEX_OLMO = EVEN | _WHOLE | {"model_type": "flex_olmo"}
PHIMOE = EVEN | _LOCAL | {"model_type": "phimoe", "router_jitter_noise": 0.2}
GRANITEMOE = EVEN | _LOCAL | FACTORS | {"model_type": "granitemoe"}
GRANITEMOESHARED = GRANITEMOE | {"model_type": "granitemoeshared", "shared_intermediate_size": 48}
GPT_OSS = (
    LLAMA
    | _LOCAL
    | MIXED
    | {
        "model_type": "gpt_oss",
        "swiglu_limit": 0.5,
        "rope_parameters": YARN | {"truncate": False},
    }
)
ERNIE4_5_MOE = EVEN | {
    "model_type": "ernie4_5_moe",
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_intermediate_size": 32,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
}
GLM4_MOE = EVEN | _GROUPS | {"model_type": "glm4_moe", "head_dim": 32}
DOTS1 = EVEN | _GROUPS | {"model_type": "dots1"}
SOLAR_OPEN = {
    key: value
    for key, value in (LLAMA | _GROUPS | {"model_type": "solar_open"}).items()
    if key not in ("first_k_dense_replace", "intermediate_size")
}
EXAONE_MOE = (
    EVEN
    | _FOUR
    | MIXED
    | {"model_type": "exaone_moe", "num_shared_experts": 1, "routed_scaling_factor": 1.5}
)
MINIMAX_M2 = LLAMA | _LOCAL | {"model_type": "minimax_m2"}
GRANITEMOE_SWA = (
    GRANITEMOESHARED | MIXED | {"model_type": "granitemoe_swa", "layer_rope_theta": [100.0, 0.0]}
)
HUNYUAN_V1_MOE = LLAMA | {"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": 2}

_ALL: tuple[dict[str, Any], ...] = (
    *(MIXTRAL, QWEN2_MOE, QWEN3_MOE, OLMOE, FLEX_OLMO, PHIMOE, GRANITEMOE, GRANITEMOESHARED),
    *(GPT_OSS, ERNIE4_5_MOE, GLM4_MOE, DOTS1, SOLAR_OPEN, EXAONE_MOE, MINIMAX_M2),
    *(GRANITEMOE_SWA, HUNYUAN_V1_MOE),
)

MIXTURES: dict[str, dict[str, Any]] = {values["model_type"]: values for values in _ALL}
