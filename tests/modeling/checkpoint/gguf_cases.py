"""Tiny models of every GGUF architecture, converted as llama.cpp does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.modeling.checkpoint.gguf_files import (
    LLAMA_KEYS,
    llama_metadata,
    turned,
    write_gguf,
)
from tests.modeling.tiny_models import GPT2, LLAMA, NO_TOKENS, VOCABULARY, reference_model
from torch import Tensor
from transformers import PreTrainedModel

WINDOWED = LLAMA_KEYS | {
    "sliding_window": "attention.sliding_window",
    "head_dim": "attention.key_length",
}

LAYER_NORM = {key: value for key, value in LLAMA_KEYS.items() if key != "rms_norm_eps"}

GPT2_KEYS = {
    "n_positions": "context_length",
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}

NEOX_KEYS = LAYER_NORM | {"layer_norm_eps": "attention.layer_norm_epsilon"}

HEADS = {"embed_out.weight": "lm_head.weight"}
"""Names that transformers changes when it loads a checkpoint."""

FALCON: dict[str, Any] = {
    "model_type": "falcon",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    **NO_TOKENS,
}

FALCON_KEYS = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}

Change = Callable[[str, Tensor], Tensor]


def as_it_is(name: str, tensor: Tensor) -> Tensor:
    return tensor


def with_turned_pairs(name: str, tensor: Tensor) -> Tensor:
    heads = {"attn_q": 4, "attn_k": 2}.get(name.split(".")[-2])
    return tensor if heads is None else turned(tensor, heads)


def with_gains_of_one(name: str, tensor: Tensor) -> Tensor:
    return tensor + 1 if name.endswith("norm.weight") else tensor


def transposed(name: str, tensor: Tensor) -> Tensor:
    is_product = name.startswith("blk.") and tensor.dim() == 2
    return tensor.T if is_product else tensor


def with_parts_apart(groups: int, group: int) -> Change:
    """Moves all queries before all keys, and those before all values."""

    def change(name: str, tensor: Tensor) -> Tensor:
        if "attn_qkv" not in name:
            return tensor
        dim = tensor.shape[0] // (groups * (group + 2))
        heads = tensor.view(groups, group + 2, dim, *tensor.shape[1:])
        parts = (heads[:, :group], heads[:, group : group + 1], heads[:, group + 1 :])
        return torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])

    return change


CASES: dict[str, tuple[str, dict[str, Any], dict[str, str], dict[str, Any], Change]] = {
    "llama": ("llama", LLAMA, LLAMA_KEYS, {}, with_turned_pairs),
    # Files hold floats of 32 bits.
    "llama-exact": ("llama", LLAMA | {"rms_norm_eps": 2.0**-20}, LLAMA_KEYS, {}, with_turned_pairs),
    "llama-tied-biased": (
        "llama",
        LLAMA | {"tie_word_embeddings": True, "attention_bias": True},
        LLAMA_KEYS,
        {},
        with_turned_pairs,
    ),
    "llama-linear": (
        "llama",
        LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
        LLAMA_KEYS,
        {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
        with_turned_pairs,
    ),
    "llama-yarn": (
        "llama",
        LLAMA
        | {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 2.0,
                "rope_theta": 500.0,
                "original_max_position_embeddings": 48,
            }
        },
        LLAMA_KEYS,
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 2.0,
            "rope.scaling.original_context_length": 48,
        },
        with_turned_pairs,
    ),
    "qwen2": ("qwen2", LLAMA | {"model_type": "qwen2"}, LLAMA_KEYS, {}, as_it_is),
    "qwen3": (
        "qwen3",
        LLAMA | {"model_type": "qwen3", "head_dim": 16},
        WINDOWED,
        {"attention.value_length": 16, "rope.dimension_count": 16},
        as_it_is,
    ),
    "smollm3": (
        "smollm3",
        LLAMA | {"model_type": "smollm3", "num_hidden_layers": 4},
        LLAMA_KEYS,
        {},
        with_turned_pairs,
    ),
    "olmo2": ("olmo2", LLAMA | {"model_type": "olmo2"}, LLAMA_KEYS, {}, as_it_is),
    "granite": (
        "granite",
        LLAMA
        | {
            "model_type": "granite",
            "attention_multiplier": 0.25,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
        LLAMA_KEYS
        | {
            "attention_multiplier": "attention.scale",
            "embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_scale",
        },
        {},
        with_turned_pairs,
    ),
    "gemma": (
        "gemma",
        LLAMA | {"model_type": "gemma", "head_dim": 16},
        WINDOWED,
        {},
        with_gains_of_one,
    ),
    "gemma2": (
        "gemma2",
        LLAMA
        | {
            "model_type": "gemma2",
            "head_dim": 16,
            "sliding_window": 5,
            "query_pre_attn_scalar": 16,
        },
        WINDOWED,
        {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        with_gains_of_one,
    ),
    "gemma3": (
        "gemma3",
        LLAMA
        | {
            "model_type": "gemma3_text",
            "num_hidden_layers": 6,
            "head_dim": 16,
            "sliding_window": 5,
            "query_pre_attn_scalar": 16,
            "tie_word_embeddings": True,
        },
        WINDOWED,
        {"rope.freq_base": 1e6},
        with_gains_of_one,
    ),
    "phi3": (
        "phi3",
        LLAMA | {"model_type": "phi3", "sliding_window": 7},
        LLAMA_KEYS | {"sliding_window": "attention.sliding_window"},
        {},
        as_it_is,
    ),
    "starcoder2": (
        "starcoder2",
        LLAMA | {"model_type": "starcoder2", "use_bias": True, "sliding_window": None},
        LAYER_NORM | {"norm_epsilon": "attention.layer_norm_epsilon"},
        {},
        as_it_is,
    ),
    "stablelm": (
        "stablelm",
        LLAMA | {"model_type": "stablelm", "partial_rotary_factor": 0.5},
        LAYER_NORM | {"layer_norm_eps": "attention.layer_norm_epsilon"},
        {"rope.dimension_count": 4, "use_parallel_residual": False},
        as_it_is,
    ),
    "gpt2": ("gpt2", GPT2, GPT2_KEYS, {"feed_forward_length": 128}, transposed),
    "gptneox": (
        "gptneox",
        {
            **{key: value for key, value in LLAMA.items() if key != "num_key_value_heads"},
            "model_type": "gpt_neox",
            "rotary_pct": 0.5,
        },
        NEOX_KEYS,
        {"rope.dimension_count": 4, "use_parallel_residual": True},
        with_parts_apart(4, 1),
    ),
    "falcon": (
        "falcon",
        FALCON | {"multi_query": True},
        FALCON_KEYS,
        {"attention.head_count_kv": 1, "feed_forward_length": 128},
        with_parts_apart(1, 4),
    ),
    "falcon-two-norms": (
        "falcon",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
        FALCON_KEYS,
        {"attention.head_count_kv": 2, "feed_forward_length": 128},
        with_parts_apart(2, 2),
    ),
    "command-r": (
        "command-r",
        LLAMA | {"model_type": "cohere", "logit_scale": 0.25},
        NEOX_KEYS | {"logit_scale": "logit_scale"},
        {},
        as_it_is,
    ),
    "cohere2": (
        "cohere2",
        LLAMA
        | {
            "model_type": "cohere2",
            "num_hidden_layers": 4,
            "sliding_window": 5,
            "logit_scale": 0.25,
        },
        NEOX_KEYS | {"logit_scale": "logit_scale", "sliding_window": "attention.sliding_window"},
        {},
        as_it_is,
    ),
    "phi2": (
        "phi2",
        LLAMA | {"model_type": "phi", "partial_rotary_factor": 0.5},
        NEOX_KEYS,
        {"rope.dimension_count": 4},
        as_it_is,
    ),
    "olmo": (
        "olmo",
        LLAMA | {"model_type": "olmo", "clip_qkv": 0.5},
        LAYER_NORM | {"clip_qkv": "attention.clamp_kqv"},
        {"attention.layer_norm_epsilon": 1e-5},
        with_turned_pairs,
    ),
    "nemotron": (
        "nemotron",
        LLAMA | {"model_type": "nemotron", "partial_rotary_factor": 0.5},
        LAYER_NORM | {"norm_eps": "attention.layer_norm_epsilon"},
        {"rope.dimension_count": 4},
        with_gains_of_one,
    ),
    "arcee": ("arcee", LLAMA | {"model_type": "arcee"}, LLAMA_KEYS, {}, with_turned_pairs),
    "ernie4_5": (
        "ernie4_5",
        LLAMA | {"model_type": "ernie4_5", "head_dim": 16},
        WINDOWED,
        {},
        as_it_is,
    ),
    "seed_oss": (
        "seed_oss",
        LLAMA | {"model_type": "seed_oss", "head_dim": 16, "attention_bias": True},
        WINDOWED,
        {},
        as_it_is,
    ),
    "bloom": (
        "bloom",
        {
            "model_type": "bloom",
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            **NO_TOKENS,
        },
        {
            "hidden_size": "embedding_length",
            "n_layer": "block_count",
            "n_head": "attention.head_count",
            "layer_norm_epsilon": "attention.layer_norm_epsilon",
        },
        {"context_length": 96, "feed_forward_length": 128},
        with_parts_apart(4, 1),
    ),
}


def written(name: str, folder: Path, **more: Any) -> tuple[PreTrainedModel, Path]:
    """The reference model of a case, and its file."""
    arch, values, keys, metadata, change = CASES[name]
    model = reference_model(values)
    file = folder / "model.gguf"
    write_gguf(file, arch, model, llama_metadata(model, keys) | metadata, change=change, **more)
    return model, file
