"""Configs as they were published, read as the models that they describe."""

from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoConfig

from ortolan.modeling.checkpoint.folder import config_from_hf, empty_model
from ortolan.modeling.config import (
    AttentionConfig,
    DecoderConfig,
    LearnedPositions,
    Llama3Scaling,
    RotaryPositions,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import family_of, published_config, weights_of
from ortolan.modeling.families.activations import NAMES, read_activation, write_activation
from ortolan.modeling.weights import targets

COMMON: dict[str, Any] = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1",
    "use_cache": True,
}

LLAMA = COMMON | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}

SMOLLM2_135M = LLAMA | {
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}

LLAMA_32_1B = LLAMA | {
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}

TINYLLAMA = LLAMA | {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 22,
    "num_key_value_heads": 4,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}

QWEN25_05B = COMMON | {
    "architectures": ["Qwen2ForCausalLM"],
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}

MISTRAL_7B = COMMON | {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}

GPT2_124M: dict[str, Any] = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}

PUBLISHED = {
    "SmolLM2-135M": (SMOLLM2_135M, 134_515_008),
    "Llama-3.2-1B": (LLAMA_32_1B, 1_235_814_400),
    "TinyLlama-1.1B": (TINYLLAMA, 1_100_048_384),
    "Qwen2.5-0.5B": (QWEN25_05B, 494_032_768),
    "Mistral-7B-v0.1": (MISTRAL_7B, 7_241_732_096),
    "gpt2": (GPT2_124M, 124_439_808),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_a_model_of_the_published_size(name: str) -> None:
    values, parameters = PUBLISHED[name]
    module = empty_model(config_from_hf(values))
    assert sum(p.numel() for p in module.parameters()) == parameters
    assert {p.device.type for p in module.parameters()} == {"meta"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_reads_the_same_after_transformers_rewrote_it(name: str) -> None:
    values, _ = PUBLISHED[name]
    rest = {key: value for key, value in values.items() if key != "model_type"}
    rewritten = AutoConfig.for_model(values["model_type"], **rest).to_diff_dict()
    assert config_from_hf(rewritten) == config_from_hf(values)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_reads_the_same_after_we_wrote_it(name: str) -> None:
    config = config_from_hf(PUBLISHED[name][0])
    assert config_from_hf(published_config(config)) == config


def test_what_a_llama_config_says() -> None:
    config = config_from_hf(LLAMA_32_1B)
    assert config.positions == RotaryPositions(
        dim=64,
        theta=500_000.0,
        scaling=Llama3Scaling(
            factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192
        ),
    )
    assert config.context_length == 131_072
    assert config.eos_token_ids == (128_001, 128_008, 128_009)
    assert (config.bos_token_id, config.pad_token_id) == (128_000, None)
    assert config.blocks == (config.blocks[0],) * 16
    assert config.blocks[0].attention == AttentionConfig(
        num_heads=32, num_kv_heads=8, head_dim=64, scale=0.125
    )


def test_what_a_gpt2_config_says() -> None:
    config = config_from_hf(GPT2_124M)
    assert config.positions == LearnedPositions()
    assert config.tied_head
    assert config.blocks[0].dense.intermediate_size == 3072
    assert config.blocks[0].dense.activation == "gelu_tanh"


def windows(**changes: object) -> list[int | None]:
    """The windows of the first three layers of a changed config."""
    values = (QWEN25_05B if "use_sliding_window" in changes else MISTRAL_7B) | changes
    values = {key: value for key, value in values.items() if value != "absent"}
    blocks = config_from_hf(values | {"num_hidden_layers": 3}).blocks
    return [block.attention.sliding_window for block in blocks]


def test_mistral_without_the_key_has_the_default_window_of_transformers() -> None:
    assert windows(sliding_window=7) == [7, 7, 7]
    assert windows(sliding_window=None) == [None, None, None]
    assert windows(sliding_window="absent") == [4096, 4096, 4096]


def test_qwen2_windows_begin_where_the_config_says() -> None:
    on = {"use_sliding_window": True, "sliding_window": 7}
    assert windows(**on | {"use_sliding_window": False}) == [None, None, None]
    assert windows(**on) == [None, None, None]
    assert windows(**on, max_window_layers=1) == [None, 7, 7]
    assert windows(**on, max_window_layers=0) == [7, 7, 7]
    assert windows(**on | {"sliding_window": "absent"}, max_window_layers=2) == [None, None, 4096]
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert windows(**on, layer_types=kinds) == [7, None, 7]


def test_an_unknown_family_is_an_error_that_names_those_spelled_much_like_it() -> None:
    with pytest.raises(ConfigError, match=r"of the \d+ families .*got 'gpt-2', much like gpt2 or"):
        family_of("gpt-2")
    with pytest.raises(ConfigError, match=r"got 'zzz'\. `ortolan families` lists them"):
        family_of("zzz")


def test_every_activation_survives_being_written() -> None:
    for name in NAMES:
        assert read_activation(write_activation(read_activation(name))) == read_activation(name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_decoder_family_has_a_head_and_an_embedding(name: str) -> None:
    table = weights_of(config_from_hf(PUBLISHED[name][0]))
    names = {target.name for entry in table for target in targets(table, entry)}
    assert {"embedding.weight", "head.weight", "final_norm.weight"} <= names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 0}, "at least one head"),
        ({"num_kv_heads": 0}, "at least one head"),
        ({"head_dim": 0}, "at least one channel"),
        ({"num_kv_heads": 5}, "divisible by num_kv_heads"),
        ({"sliding_window": 0}, "window of at least 1"),
    ],
)
def test_an_attention_that_cannot_be_is_an_error(change: dict[str, Any], message: str) -> None:
    attention = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0)
    with pytest.raises(ConfigError, match=message):
        replace(attention, **change)


def test_a_model_that_cannot_be_is_an_error() -> None:
    config: DecoderConfig = config_from_hf(SMOLLM2_135M)
    with pytest.raises(ConfigError, match="at least one layer"):
        replace(config, blocks=())
    for dim in (0, 3, 66):
        with pytest.raises(ConfigError, match="an even number of rotated channels up to 64"):
            replace(config, positions=RotaryPositions(dim=dim))
