"""Configs of well-known decoders as published, and what they say.

Keys that only training, generation or tools read are left out where another config here has them.
"""

from typing import Any

import pytest

from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import (
    DecoderConfig,
    Llama3Scaling,
    LongRopeScaling,
    NoPositions,
    RotaryPositions,
    YarnScaling,
)
from ortolan.modeling.errors import ConfigError

COMMON: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}

QWEN3 = COMMON | {
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}

GEMMA = COMMON | {
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": 256,
    "hidden_act": "gelu",
    "hidden_activation": None,
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "max_position_embeddings": 8192,
    "model_type": "gemma",
    "num_attention_heads": 8,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "vocab_size": 256000,
}

GEMMA2 = GEMMA | {
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 107],
    "final_logit_softcapping": 30.0,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "model_type": "gemma2",
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}

GEMMA3 = {key: value for key, value in GEMMA2.items() if key != "hidden_act"} | {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "rope_local_base_freq": 10000,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}

PHI4_MINI = COMMON | {
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
    "bos_token_id": 199999,
    "eos_token_id": 199999,
    "full_attn_mod": 1,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "phi3",
    "num_attention_heads": 24,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 199999,
    "partial_rotary_factor": 0.75,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"long_factor": [2.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "tie_word_embeddings": True,
    "vocab_size": 200064,
}

SMOLLM3 = COMMON | {
    "eos_token_id": 128012,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "layer_types": ["full_attention"] * 36,
    "max_position_embeddings": 65536,
    "max_window_layers": 28,
    "mlp_bias": False,
    "model_type": "smollm3",
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 4,
    "pad_token_id": 128004,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 5000000.0,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 128256,
}

GRANITE = COMMON | {
    "attention_multiplier": 0.015625,
    "bos_token_id": 0,
    "embedding_multiplier": 12.0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "logits_scaling": 8.0,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "granite",
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000000.0,
    "tie_word_embeddings": True,
    "vocab_size": 49159,
}

OLMO3 = COMMON | {
    "eos_token_id": 100257,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "layer_types": ([*["sliding_attention"] * 3, "full_attention"]) * 8,
    "max_position_embeddings": 65536,
    "model_type": "olmo3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pad_token_id": 100277,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "attention_factor": 1.2079441541679836,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "yarn",
    },
    "rope_theta": 500000,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 100278,
}

EXAONE4 = COMMON | {
    "bos_token_id": 1,
    "eos_token_id": 361,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "layer_types": ["full_attention"] * 30,
    "max_position_embeddings": 65536,
    "model_type": "exaone4",
    "num_attention_heads": 32,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 16.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 1000000,
    "sliding_window": None,
    "sliding_window_pattern": None,
    "tie_word_embeddings": True,
    "vocab_size": 102400,
}

COMMAND_R7B = COMMON | {
    "bos_token_id": 5,
    "cache_implementation": "hybrid",
    "eos_token_id": 255001,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "layer_norm_eps": 1e-05,
    "layer_switch": 4,
    "logit_scale": 0.25,
    "max_position_embeddings": 8192,
    "model_type": "cohere2",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "order_of_interleaved_layers": "local_attn_first",
    "pad_token_id": 0,
    "position_embedding_type": "rope_gptj",
    "rope_scaling": None,
    "rope_theta": 50000,
    "rotary_pct": 1.0,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
    "use_embedding_sharing": True,
    "use_gated_activation": True,
    "use_parallel_block": True,
    "use_parallel_embedding": True,
    "use_qk_norm": False,
    "vocab_size": 256000,
}

GLM4 = COMMON | {
    "attention_bias": True,
    "eos_token_id": [151329, 151336, 151338],
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "max_position_embeddings": 131072,
    "model_type": "glm",
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "pad_token_id": 151329,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1.5625e-07,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 151552,
}


def read(values: dict[str, Any]) -> DecoderConfig:
    return config_from_hf(values)


def test_qwen3_norms_queries_and_keys() -> None:
    config = read(QWEN3)
    attention = config.blocks[0].attention
    assert attention.query_key_norm == config.final_norm
    assert (attention.head_dim, attention.num_heads, config.hidden_size) == (128, 16, 1024)
    assert config.tied_head
    assert not attention.qkv_bias


def test_gemma_means_the_approximation_of_gelu() -> None:
    config = read(GEMMA)
    assert config.blocks[0].dense.activation == "gelu_tanh"
    assert config.embedding_scale == 2048**0.5
    assert config.tied_head


def test_gemma2_reads_the_later_of_two_keys_of_its_activation() -> None:
    config = read(GEMMA2 | {"hidden_act": "silu"})
    assert config.blocks[0].dense.activation == "gelu_tanh"
    assert [block.attention.sliding_window for block in config.blocks[:4]] == [4096, None] * 2
    assert config.blocks[0].attention.softcap == 50.0
    assert config.final_softcap == 30.0


def test_gemma3_has_a_base_for_each_kind_of_layer() -> None:
    config = read(GEMMA3)
    windows = [block.attention.sliding_window for block in config.blocks[:7]]
    assert windows == [512] * 5 + [None, 512]
    thetas = [config.rotary_of(block.attention) for block in config.blocks[4:6]]
    assert thetas == [
        RotaryPositions(dim=256, theta=10_000.0),
        RotaryPositions(dim=256, theta=1_000_000.0),
    ]
    assert len(config.rotaries) == 2
    assert config.final_softcap is None


def test_gemma3_with_capped_scores_is_refused() -> None:
    # transformers would not cap them.
    with pytest.raises(ConfigError, match="attn_logit_softcapping"):
        read(GEMMA3 | {"attn_logit_softcapping": 50.0})


def test_phi4_mini_stretches_by_the_factors_of_its_context() -> None:
    config = read(PHI4_MINI)
    assert isinstance(config.positions, RotaryPositions)
    assert config.positions.dim == 96
    scaling = config.positions.scaling
    assert isinstance(scaling, LongRopeScaling)
    assert scaling.original_context == 4096
    assert scaling.attention_factor == pytest.approx(1.190238)


def test_smollm3_has_no_positions_in_every_fourth_layer() -> None:
    config = read(SMOLLM3)
    rotated = [config.rotary_of(block.attention) is not None for block in config.blocks]
    assert rotated == [True, True, True, False] * 9
    assert config.blocks[3].attention.rotary == NoPositions()
    assert config.tied_head


def test_granite_has_its_factors() -> None:
    config = read(GRANITE)
    assert config.head_scale == 1 / 8
    assert config.embedding_scale == 12.0
    assert config.blocks[0].residual_scale == 0.22
    assert config.blocks[0].attention.scale == 0.015625


def test_olmo3_scales_the_positions_of_layers_that_see_all() -> None:
    config = read(OLMO3)
    windowed, full = (config.rotary_of(config.blocks[i].attention) for i in (0, 3))
    assert windowed == RotaryPositions(dim=128, theta=500_000.0)
    assert full is not None
    assert isinstance(full.scaling, YarnScaling)
    assert config.blocks[0].placement == "inner_post"
    assert config.blocks[0].attention.norm_over == "all"


def test_exaone4_without_windows_has_positions_in_every_layer() -> None:
    config = read(EXAONE4)
    assert len(config.rotaries) == 1
    assert isinstance(config.rotaries[0].scaling, Llama3Scaling)


def test_command_r7b_has_positions_where_it_has_a_window() -> None:
    config = read(COMMAND_R7B)
    attention = [block.attention for block in config.blocks[:4]]
    assert [each.sliding_window for each in attention] == [4096, 4096, 4096, None]
    assert [config.rotary_of(each) is None for each in attention] == [False, False, False, True]
    assert config.head_scale == 0.25
    assert config.blocks[0].placement == "parallel"


@pytest.mark.parametrize(
    ("key", "value"),
    [("use_qk_norm", True), ("use_parallel_block", False), ("use_gated_activation", False)],
)
def test_command_r_with_other_layers_is_refused(key: str, value: bool) -> None:
    with pytest.raises(ConfigError, match=key):
        read(COMMAND_R7B | {key: value})


def test_glm4_turns_half_of_each_head_neighbours_together() -> None:
    config = read(GLM4)
    assert config.positions == RotaryPositions(dim=64, interleaved=True)
    assert config.blocks[0].attention.qkv_bias
    assert not config.blocks[0].attention.out_bias
