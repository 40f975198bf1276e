"""Tiny models of every GGUF architecture, converted as llama.cpp does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tests.modeling.checkpoint.gguf_files import metadata_of, turned, write_gguf
from tests.modeling.tiny_models import LLAMA, reference_model
from tests.tiny.classics import CLASSICS
from tests.tiny.decoders import GPT2
from torch import Tensor
from transformers import PreTrainedModel

HEADS = {"embed_out.weight": "lm_head.weight"}
"""Names that transformers changes when it loads a checkpoint."""

FALCON = CLASSICS["falcon"] | {"num_attention_heads": 4}

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
    """Architecture, config, what a file says besides its values, and how rows move."""

    arch: str
    values: dict[str, Any]
    metadata: dict[str, Any] = {}  # noqa: RUF012 - of a tuple
    change: Change = as_it_is


def llama(model_type: str = "llama", /, **values: Any) -> dict[str, Any]:
    return LLAMA | {"model_type": model_type, **values}


def turned_llama(values: dict[str, Any] = LLAMA, **metadata: Any) -> Case:
    """A family whose queries and keys converters turn, in files of its own type."""
    return Case(values["model_type"], values, metadata, with_turned_pairs)


WIDE = {"head_dim": 16}

GEMMA = {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 16}

YARN = {
    "rope_type": "yarn",
    "factor": 2.0,
    "rope_theta": 500.0,
    "original_max_position_embeddings": 48,
}

LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}

FACTORS = {
    "attention_multiplier": 0.25,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
}

HALF = {"rope.dimension_count": 4}

WIDTHS = {"feed_forward_length": 128}

CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}

NEOX = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}

CASES = {
    "llama": turned_llama(),
    # Files hold floats of 32 bits.
    "llama-exact": turned_llama(llama(rms_norm_eps=2.0**-20)),
    "llama-tied-biased": turned_llama(llama(tie_word_embeddings=True, attention_bias=True)),
    "llama-linear": turned_llama(
        llama(rope_parameters=LINEAR), **{"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    ),
    "llama-yarn": turned_llama(
        llama(rope_parameters=YARN),
        **{"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0},
        **{"rope.scaling.original_context_length": 48},
    ),
    "qwen2": Case("qwen2", llama("qwen2")),
    "qwen3": Case(
        "qwen3", llama("qwen3", **WIDE), {"attention.value_length": 16, "rope.dimension_count": 16}
    ),
    "smollm3": turned_llama(llama("smollm3", num_hidden_layers=4)),
    "olmo2": Case("olmo2", llama("olmo2")),
    "granite": turned_llama(llama("granite", **FACTORS)),
    "gemma": Case("gemma", llama("gemma", **WIDE), change=with_gains_of_one),
    "gemma2": Case("gemma2", llama("gemma2", **GEMMA), CAPS, with_gains_of_one),
    "gemma3": Case(
        "gemma3",
        llama("gemma3_text", num_hidden_layers=6, tie_word_embeddings=True, **GEMMA),
        {"rope.freq_base": 1e6},
        with_gains_of_one,
    ),
    "phi3": Case("phi3", llama("phi3", sliding_window=7)),
    "starcoder2": Case("starcoder2", llama("starcoder2", use_bias=True, sliding_window=None)),
    "stablelm": Case(
        "stablelm",
        llama("stablelm", partial_rotary_factor=0.5),
        HALF | {"use_parallel_residual": False},
    ),
    "gpt2": Case("gpt2", GPT2, WIDTHS, transposed),
    "gptneox": Case(
        "gptneox",
        NEOX | {"model_type": "gpt_neox", "rotary_pct": 0.5},
        HALF | {"use_parallel_residual": True},
        with_parts_apart(4, 1),
    ),
    "falcon": Case(
        "falcon",
        FALCON | {"multi_query": True},
        WIDTHS | {"attention.head_count_kv": 1},
        with_parts_apart(1, 4),
    ),
    "falcon-two-norms": Case(
        "falcon",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
        WIDTHS | {"attention.head_count_kv": 2},
        with_parts_apart(2, 2),
    ),
    "command-r": Case("command-r", llama("cohere", logit_scale=0.25)),
    "cohere2": Case(
        "cohere2", llama("cohere2", num_hidden_layers=4, sliding_window=5, logit_scale=0.25)
    ),
    "phi2": Case("phi2", llama("phi", partial_rotary_factor=0.5), HALF),
    "olmo": turned_llama(llama("olmo", clip_qkv=0.5), **{"attention.layer_norm_epsilon": 1e-5}),
    "nemotron": Case(
        "nemotron", llama("nemotron", partial_rotary_factor=0.5), HALF, with_gains_of_one
    ),
    "arcee": turned_llama(llama("arcee")),
    "ernie4_5": Case("ernie4_5", llama("ernie4_5", **WIDE)),
    "seed_oss": Case("seed_oss", llama("seed_oss", attention_bias=True, **WIDE)),
    "bloom": Case(
        "bloom",
        CLASSICS["bloom"] | {"n_head": 4},
        WIDTHS | {"context_length": 96},
        with_parts_apart(4, 1),
    ),
}


def written(name: str, folder: Path, **more: Any) -> tuple[PreTrainedModel, Path]:
    """The reference model of a case, and its file."""
    arch, values, metadata, change = CASES[name]
    model = reference_model(values)
    file = folder / "model.gguf"
    write_gguf(file, arch, model, metadata_of(model) | metadata, change=change, **more)
    return model, file
