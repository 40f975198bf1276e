"""Configs of encoders as they are published, whose keys transformers does not write."""

from typing import Any

import pytest

from ortolan.modeling import ConfigError, EncoderConfig
from ortolan.modeling.checkpoint.folder import config_from_hf
from ortolan.modeling.config import RotaryPositions

NOMIC: dict[str, Any] = {
    "activation_function": "swiglu",
    "architectures": ["NomicBertModel"],
    "attn_pdrop": 0.0,
    "causal": False,
    "dense_seq_output": True,
    "embd_pdrop": 0.0,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "parallel_block_tied_norm": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "reorder_and_upcast_attn": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "summary_activation": None,
    "summary_first_dropout": 0.0,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "type_vocab_size": 2,
    "use_cache": True,
    "use_flash_attn": True,
    "use_rms_norm": False,
    "use_xentropy": True,
    "vocab_size": 30528,
}
"""The keys of nomic-ai/nomic-embed-text-v1.5."""

LATER: dict[str, Any] = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-12,
    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
}
"""Those that it has besides since transformers has the model."""

MODERN: dict[str, Any] = {
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 50281,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "cls_token_id": 50281,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": 50282,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_norm_eps": 1e-05,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "pad_token_id": 50283,
    "position_embedding_type": "absolute",
    "reference_compile": None,
    "repad_logits_with_grad": False,
    "sep_token_id": 50282,
    "sparse_pred_ignore_index": -100,
    "sparse_prediction": False,
    "torch_dtype": "float32",
    "transformers_version": "4.47.0.dev0",
    "vocab_size": 50368,
}
"""The keys of answerdotai/ModernBERT-base."""


@pytest.mark.parametrize("values", [NOMIC, NOMIC | LATER])
def test_nomic_embed_is_understood(values: dict[str, Any]) -> None:
    config = config_from_hf(values, EncoderConfig)
    assert config.positions == RotaryPositions(dim=64, theta=1000.0)
    assert (config.hidden_size, len(config.blocks), config.context_length) == (768, 12, 8192)
    assert config.blocks[0].dense.intermediate_size == 3072


@pytest.mark.parametrize(
    "change",
    [
        {"prenorm": True},
        {"rotary_emb_fraction": 0.5},
        {"rotary_emb_scale_base": 512.0},
        {"rotary_scaling_factor": 2.0},
        {"scale_attn_weights": False},
    ],
)
def test_a_variant_of_nomic_embed_is_an_error(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(change))}"):
        config_from_hf(NOMIC | change, EncoderConfig)


def test_modernbert_is_understood() -> None:
    config = config_from_hf(MODERN, EncoderConfig)
    windows = [block.attention.sliding_window for block in config.blocks]
    assert windows == [None if i % 3 == 0 else 65 for i in range(22)]
    thetas = [rotary.theta for rotary in config.rotaries]
    assert thetas == [160_000.0, 10_000.0]
    assert [block.attention_norm for block in config.blocks] == [False, *[True] * 21]


EMBEDDING_GEMMA: dict[str, Any] = {
    "_sliding_window_pattern": 6,
    "architectures": ["Gemma3TextModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4,
    "max_position_embeddings": 2048,
    "model_type": "gemma3_text",
    "num_attention_heads": 3,
    "num_hidden_layers": 24,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "use_bidirectional_attention": True,
    "use_cache": True,
    "vocab_size": 262144,
}
"""The keys of google/embeddinggemma-300m."""


def test_embedding_gemma_is_understood() -> None:
    config = config_from_hf(EMBEDDING_GEMMA, EncoderConfig)
    assert not any(block.attention.causal for block in config.blocks)
    windows = [block.attention.sliding_window for block in config.blocks]
    assert windows == ([257] * 5 + [None]) * 4
    assert config.embedding_scale == 768**0.5
