"""The Hugging Face config equivalent to the metadata of a GGUF file."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from ortolan.modeling.checkpoint.gguf.architectures import ARCHITECTURES, Architecture
from ortolan.modeling.checkpoint.gguf.header import ARCHITECTURE, Header, Value
from ortolan.modeling.checkpoint.gguf.tensors import FACTOR_TENSORS, read_stored
from ortolan.modeling.errors import CheckpointError

VOCABULARY = "token_embd.weight"

SPECIAL_IDS = {
    "bos_token_id": ("bos_token_id",),
    "eos_token_id": ("eos_token_id", "eot_token_id", "eom_token_id"),
    "pad_token_id": ("padding_token_id",),
}
"""Token ids of a config, and their keys below `tokenizer.ggml`."""

DERIVED = ("vocab_size", "attention.value_length", "rope.dimension_count", "tensor_data_layout")
"""Keys that repeat what shapes imply, or that other values are derived from."""

WINDOW = "attention.sliding_window"

SWITCHES = (WINDOW, "attention.clamp_kqv", "attn_logit_softcapping", "final_logit_softcapping")
"""Keys that a config has, too, with null instead of 0."""

OFF = re.compile(
    r"(^|[._])(bias|count|func|interval|kqv|layers|norm|rank|scale|sections|size|softcapping|step|"
    r"type|window)$"
)
"""Keys whose feature is off at 0, by the last word of their names, as in llama.cpp."""

LAYERS_OF_27B = {"gemma2": 46, "gemma3_text": 62}
"""Layers of the 27B models, which scale by width per head instead of the head width."""


def architecture_of(header: Header) -> Architecture:
    """Architecture of a file."""
    architecture = ARCHITECTURES.get(header.architecture)
    if architecture is None:
        raise CheckpointError(
            f"{header.path}: {ARCHITECTURE} must be one of {', '.join(ARCHITECTURES)} (got "
            f"{header.architecture!r:.40}). Export the checkpoint that the file was made from."
        )
    return architecture


def hf_values(header: Header) -> dict[str, object]:
    """Values of the config.json equivalent to a file's metadata."""
    architecture = architecture_of(header)
    if header.metadata.get("split.count", 1) not in (0, 1):
        raise CheckpointError(
            f"{header.path}: one of {header.metadata['split.count']} files of a model. Merge them "
            "with llama.cpp's gguf-split."
        )
    if VOCABULARY not in header.tensors:
        raise CheckpointError(
            f"{header.path}: no tensor {VOCABULARY}. This is not a language model."
        )
    own = own_values(header)
    values: dict[str, object] = {
        "architectures": [architecture.model_class],
        "model_type": architecture.model_type,
        "vocab_size": header.tensors[VOCABULARY].shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **special_ids(header.metadata),
        **architecture.implied,
    }
    scaling = {key for key in own if key.startswith("rope.scaling.")}
    for key, value in own.items():
        if key in architecture.keys:
            if (name := architecture.keys[key]) is not None:
                values[name] = None if key in SWITCHES and not value else value
        elif key not in DERIVED and key not in scaling and not is_neutral(key, own):
            values[f"{header.architecture}.{key}"] = value
    values |= rope_values(header, own, partial=architecture.partial)
    for name, tensor in architecture.switches.items():
        values[name] = f"blk.0.{tensor}" in header.tensors
    if architecture.model_type in LAYERS_OF_27B:
        values["query_pre_attn_scalar"] = _gemma_scalar(values)
    return values


def is_neutral(key: str, own: Mapping[str, Value]) -> bool:
    """Whether a key below the architecture's name has a value that changes nothing."""
    value = own[key]
    if key.startswith("expert"):
        return not own.get("expert_count")
    if key.startswith(WINDOW) or key.endswith("_swa"):
        return not own.get(WINDOW)
    if key == "attention.causal":
        return value is True
    if key.endswith(("scale", "scale_linear")) and value == 1:
        return True
    return bool(OFF.search(key)) and not (any(value) if isinstance(value, list) else value)


def own_values(header: Header) -> dict[str, Value]:
    """Values below the architecture's name."""
    prefix = f"{header.architecture}."
    return {
        key.removeprefix(prefix): value
        for key, value in header.metadata.items()
        if key.startswith(prefix)
    }


def special_ids(metadata: Mapping[str, Value]) -> dict[str, object]:
    """Special token ids, under the keys of a config."""
    ids_by_name: dict[str, object] = {}
    for name, keys in SPECIAL_IDS.items():
        values = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
        ids = list(dict.fromkeys(i for i in values if isinstance(i, int)))
        ids_by_name[name] = ids if len(ids) > 1 else next(iter(ids), None)
    return ids_by_name


def _gemma_scalar(values: Mapping[str, object]) -> object:
    """The width that scores are scaled by, which no key of a file states."""
    width, heads = values.get("hidden_size"), values.get("num_attention_heads")
    is_27b = values.get("num_hidden_layers") == LAYERS_OF_27B[str(values["model_type"])]
    if is_27b and isinstance(width, int) and isinstance(heads, int) and heads:
        return width // heads
    return values.get("head_dim", 256)


FACTORS, LONG, SHORT = FACTOR_TENSORS

LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Values of all models of Llama 3.1 to 3.3; a file contains only the resulting factors."""


def rope_values(header: Header, own: Mapping[str, Value], *, partial: str) -> dict[str, object]:
    """Config keys for rotary positions."""
    values: dict[str, object] = {}
    heads, width = own.get("attention.head_count"), own.get("embedding_length")
    rotated = own.get("rope.dimension_count")
    if isinstance(rotated, int) and isinstance(heads, int) and isinstance(width, int) and heads:
        head_dim = own.get("attention.key_length", width // heads)
        if isinstance(head_dim, int) and rotated != head_dim:
            values[partial] = rotated / head_dim
    scaling = _scaling(header, own)
    if scaling is not None:
        values["rope_scaling"] = scaling
        if "original_max_position_embeddings" in scaling and scaling["rope_type"] == "longrope":
            original = scaling["original_max_position_embeddings"]
            values["original_max_position_embeddings"] = original
    return values


def _scaling(header: Header, own: Mapping[str, Value]) -> dict[str, object] | None:
    scaling = {
        key.removeprefix("rope.scaling."): value
        for key, value in own.items()
        if key.startswith("rope.scaling.")
    }
    # llama.cpp takes the type for linear if a factor comes without one, and no factor for 1.
    factor = scaling.get("factor") or 1
    kind = scaling.pop("type", "none" if factor == 1 else "linear")
    if kind == "linear" and factor == 1:
        kind = "none"
    original = scaling.pop("original_context_length", None)
    if FACTORS in header.tensors:
        return _llama3(header, own)
    if LONG in header.tensors:
        attention = scaling.pop("attn_factor", None)
        return {
            "rope_type": "longrope",
            "long_factor": read_stored(header, LONG).tolist(),
            "short_factor": read_stored(header, SHORT).tolist(),
            "original_max_position_embeddings": original,
            **({} if attention is None else {"attention_factor": attention}),
            **scaling,
        }
    if kind == "none":
        return None
    if scaling.get("attn_factor") == 1:
        scaling.pop("attn_factor")
    renamed = {"finetuned": None} | {f"yarn_{name}": name for name in ("beta_fast", "beta_slow")}
    values = {renamed.get(key, key): value for key, value in scaling.items()}
    values.pop(None, None)
    before = {} if original is None else {"original_max_position_embeddings": original}
    return {"rope_type": kind, **{str(key): value for key, value in values.items()}, **before}


def _llama3(header: Header, own: Mapping[str, Value]) -> dict[str, object]:
    """Recover the parameters that the frequency factors result from."""
    factors = read_stored(header, FACTORS)
    factor = round(float(factors.max()), 4)
    theta = own.get("rope.freq_base", 10_000.0)
    theta = float(theta) if isinstance(theta, int | float) else 10_000.0
    if not torch.allclose(_llama3_factors(len(factors), theta, factor), factors, rtol=1e-4):
        raise CheckpointError(
            f"{header.path}: the frequency factors are not those of Llama 3. Export the checkpoint "
            "that the file was made from."
        )
    return {"rope_type": "llama3", "factor": factor, **LLAMA3}


def _llama3_factors(count: int, theta: float, factor: float) -> Tensor:
    """Divisors of `count` frequencies.

    Source: Llama 3.1 (Meta 2024): stretch long waves, keep short ones, blend in between.
    """
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    turns = LLAMA3["original_max_position_embeddings"] / (
        2 * torch.pi * theta ** (torch.arange(count, dtype=torch.float64) / count)
    )
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 / (share + (1 - share) / factor)).float()
