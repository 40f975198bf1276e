"""Tiny models of every GGUF architecture, converted as llama.cpp does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tests.modeling.checkpoint.gguf_files import (
    LLAMA_KEYS,
    llama_metadata,
    turned,
    write_gguf,
)
from tests.modeling.tiny_models import LLAMA, reference_model
from tests.tiny.classics import CLASSICS
from tests.tiny.decoders import GPT2
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

FALCON = CLASSICS["falcon"] | {"num_attention_heads": 4}

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


class Case(NamedTuple):
    """Architecture, config, the file's names of config keys, more metadata, and how rows move."""

    arch: str
    values: dict[str, Any]
    keys: dict[str, str]
    metadata: dict[str, Any] = {}  # noqa: RUF012 - of a tuple
    change: Change = as_it_is


def llama(model_type: str = "llama", /, **values: Any) -> dict[str, Any]:
    return LLAMA | {"model_type": model_type, **values}


WIDE = {"head_dim": 16}

GEMMA = {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 16}

YARN = {
    "rope_type": "yarn",
    "factor": 2.0,
    "rope_theta": 500.0,
    "original_max_position_embeddings": 48,
}

LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}

SCALES = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}

BLOOM = CLASSICS["bloom"] | {"n_head": 4}

HALF = {"rope.dimension_count": 4}

CASES = {
    "llama": Case("llama", LLAMA, LLAMA_KEYS, change=with_turned_pairs),
    # Files hold floats of 32 bits.
    "llama-exact": Case(
        "llama", llama(rms_norm_eps=2.0**-20), LLAMA_KEYS, change=with_turned_pairs
    ),
    "llama-tied-biased": Case(
        "llama",
        llama(tie_word_embeddings=True, attention_bias=True),
        LLAMA_KEYS,
        change=with_turned_pairs,
    ),
    "llama-linear": Case(
        "llama",
        llama(rope_parameters=LINEAR),
        LLAMA_KEYS,
        {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
        with_turned_pairs,
    ),
    "llama-yarn": Case(
        "llama",
        llama(rope_parameters=YARN),
        LLAMA_KEYS,
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 2.0,
            "rope.scaling.original_context_length": 48,
        },
        with_turned_pairs,
    ),
    "qwen2": Case("qwen2", llama("qwen2"), LLAMA_KEYS),
    "qwen3": Case(
        "qwen3",
        llama("qwen3", **WIDE),
        WINDOWED,
        {"attention.value_length": 16, "rope.dimension_count": 16},
    ),
    "smollm3": Case(
        "smollm3", llama("smollm3", num_hidden_layers=4), LLAMA_KEYS, change=with_turned_pairs
    ),
    "olmo2": Case("olmo2", llama("olmo2"), LLAMA_KEYS),
    "granite": Case(
        "granite",
        llama(
            "granite",
            attention_multiplier=0.25,
            embedding_multiplier=3.0,
            residual_multiplier=0.5,
            logits_scaling=2.0,
        ),
        LLAMA_KEYS | SCALES,
        change=with_turned_pairs,
    ),
    "gemma": Case("gemma", llama("gemma", **WIDE), WINDOWED, change=with_gains_of_one),
    "gemma2": Case(
        "gemma2",
        llama("gemma2", **GEMMA),
        WINDOWED,
        {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        with_gains_of_one,
    ),
    "gemma3": Case(
        "gemma3",
        llama("gemma3_text", num_hidden_layers=6, tie_word_embeddings=True, **GEMMA),
        WINDOWED,
        {"rope.freq_base": 1e6},
        with_gains_of_one,
    ),
    "phi3": Case(
        "phi3",
        llama("phi3", sliding_window=7),
        LLAMA_KEYS | {"sliding_window": "attention.sliding_window"},
    ),
    "starcoder2": Case(
        "starcoder2",
        llama("starcoder2", use_bias=True, sliding_window=None),
        LAYER_NORM | {"norm_epsilon": "attention.layer_norm_epsilon"},
    ),
    "stablelm": Case(
        "stablelm",
        llama("stablelm", partial_rotary_factor=0.5),
        NEOX_KEYS,
        HALF | {"use_parallel_residual": False},
    ),
    "gpt2": Case("gpt2", GPT2, GPT2_KEYS, {"feed_forward_length": 128}, transposed),
    "gptneox": Case(
        "gptneox",
        {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
        | {"model_type": "gpt_neox", "rotary_pct": 0.5},
        NEOX_KEYS,
        HALF | {"use_parallel_residual": True},
        with_parts_apart(4, 1),
    ),
    "falcon": Case(
        "falcon",
        FALCON | {"multi_query": True},
        FALCON_KEYS,
        {"attention.head_count_kv": 1, "feed_forward_length": 128},
        with_parts_apart(1, 4),
    ),
    "falcon-two-norms": Case(
        "falcon",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
        FALCON_KEYS,
        {"attention.head_count_kv": 2, "feed_forward_length": 128},
        with_parts_apart(2, 2),
    ),
    "command-r": Case(
        "command-r", llama("cohere", logit_scale=0.25), NEOX_KEYS | {"logit_scale": "logit_scale"}
    ),
    "cohere2": Case(
        "cohere2",
        llama("cohere2", num_hidden_layers=4, sliding_window=5, logit_scale=0.25),
        NEOX_KEYS | {"logit_scale": "logit_scale", "sliding_window": "attention.sliding_window"},
    ),
    "phi2": Case("phi2", llama("phi", partial_rotary_factor=0.5), NEOX_KEYS, HALF),
    "olmo": Case(
        "olmo",
        llama("olmo", clip_qkv=0.5),
        LAYER_NORM | {"clip_qkv": "attention.clamp_kqv"},
        {"attention.layer_norm_epsilon": 1e-5},
        with_turned_pairs,
    ),
    "nemotron": Case(
        "nemotron",
        llama("nemotron", partial_rotary_factor=0.5),
        LAYER_NORM | {"norm_eps": "attention.layer_norm_epsilon"},
        HALF,
        with_gains_of_one,
    ),
    "arcee": Case("arcee", llama("arcee"), LLAMA_KEYS, change=with_turned_pairs),
    "ernie4_5": Case("ernie4_5", llama("ernie4_5", **WIDE), WINDOWED),
    "seed_oss": Case("seed_oss", llama("seed_oss", attention_bias=True, **WIDE), WINDOWED),
    "bloom": Case(
        "bloom",
        BLOOM,
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
