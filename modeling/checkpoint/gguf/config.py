"""The files of a Hugging Face folder that are equivalent to the metadata of a GGUF file."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from ortolan.modeling.checkpoint.gguf.architectures import ARCHITECTURES, Architecture
from ortolan.modeling.checkpoint.gguf.header import ARCHITECTURE, Header, Value
from ortolan.modeling.checkpoint.gguf.tensors import FACTOR_TENSORS, read_stored
from ortolan.modeling.checkpoint.gguf.tokenizer import tokenizer_json
from ortolan.modeling.config import Llama3Scaling, RotaryPositions
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.layers.positions import rotary_frequencies

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

ORIGINAL = "original_max_position_embeddings"

SCALING = "rope.scaling."

SCALING_KEYS = {
    "original_context_length": ORIGINAL,
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}

FACTORS, LONG, SHORT = FACTOR_TENSORS

LLAMA3_CONTEXT = 8192
"""Original context of all models of Llama 3.1 to 3.3, whose files hold only the divisors."""

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


def derived_files(header: Header, values: Mapping[str, object]) -> dict[str, Callable[[], str]]:
    """Files next to the weights, for a config with some values; generated on demand."""
    metadata = header.metadata
    files = {
        "config.json": lambda: json.dumps(values),
        "generation_config.json": lambda: json.dumps(_special_ids(metadata)),
    }
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        files["chat_template.jinja"] = lambda: template
    if metadata.get("tokenizer.ggml.model", "none") != "none":
        files["tokenizer.json"] = lambda: tokenizer_json(header)
    return files


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
    own = _below(f"{header.architecture}.", header.metadata)
    values: dict[str, object] = {
        "model_type": architecture.model_type,
        "vocab_size": header.tensors[VOCABULARY].shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **_special_ids(header.metadata),
        **architecture.implied,
    }
    for key, value in own.items():
        if key in architecture.keys:
            if (name := architecture.keys[key]) is not None:
                values[name] = None if key in SWITCHES and not value else value
        elif not (key in DERIVED or key.startswith(SCALING) or _is_neutral(key, own)):
            values[f"{header.architecture}.{key}"] = value
    rotated, head_dim = own.get("rope.dimension_count"), _head_dim(own)
    if isinstance(rotated, int) and head_dim and rotated != head_dim:
        values[architecture.partial] = rotated / head_dim
    if (scaling := _scaling(header, own)) is not None:
        values["rope_scaling"] = scaling
        if scaling["rope_type"] == "longrope":
            values[ORIGINAL] = scaling.get(ORIGINAL)
    for name, tensor in architecture.switches.items():
        values[name] = f"blk.0.{tensor}" in header.tensors
    if architecture.model_type in LAYERS_OF_27B:
        values["query_pre_attn_scalar"] = _gemma_scalar(values)
    return values


def _is_neutral(key: str, own: Mapping[str, Value]) -> bool:
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


def _below(prefix: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """The values whose keys have a prefix, by the rest of their keys."""
    return {
        key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)
    }


def _special_ids(metadata: Mapping[str, Value]) -> dict[str, object]:
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


def _head_dim(own: Mapping[str, Value]) -> int:
    """Channels of a head; 0 if no key states them."""
    heads, width = own.get("attention.head_count"), own.get("embedding_length")
    if not isinstance(heads, int) or not isinstance(width, int) or not heads:
        return 0
    head_dim = own.get("attention.key_length", width // heads)
    return head_dim if isinstance(head_dim, int) else 0


def _scaling(header: Header, own: Mapping[str, Value]) -> dict[str, object] | None:
    """The scaling of rotary positions under the keys of a config; None without one."""
    scaling: dict[str, object] = {
        SCALING_KEYS.get(key, key): value for key, value in _below(SCALING, own).items()
    }
    scaling.pop("finetuned", None)
    # llama.cpp takes the type for linear if a factor comes without one, and no factor for 1.
    is_scaled = scaling.get("factor", 1) not in (0, 1)
    kind = scaling.pop("type", "linear")
    if FACTORS in header.tensors:
        return _llama3(header, own)
    if LONG in header.tensors:
        if "attn_factor" in scaling:
            scaling["attention_factor"] = scaling.pop("attn_factor")
        factors = (("long_factor", LONG), ("short_factor", SHORT))
        lists = {name: read_stored(header, tensor).tolist() for name, tensor in factors}
        return {"rope_type": "longrope", **lists, **scaling}
    if kind == "none" or (kind == "linear" and not is_scaled):
        return None
    if scaling.get("attn_factor") == 1:
        scaling.pop("attn_factor")
    return {"rope_type": kind, **scaling}


def _llama3(header: Header, own: Mapping[str, Value]) -> dict[str, object]:
    """Recover the parameters that the divisors of the frequencies result from."""
    divisors = read_stored(header, FACTORS)
    factor = round(float(divisors.max()), 4)
    theta = own.get("rope.freq_base")
    plain = RotaryPositions(
        dim=2 * len(divisors), theta=theta if isinstance(theta, int | float) else 10_000.0
    )
    scaling = Llama3Scaling(
        factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_context=LLAMA3_CONTEXT
    )
    scaled = replace(plain, scaling=scaling)
    expected = rotary_frequencies(plain, 1) / rotary_frequencies(scaled, 1)
    if not torch.allclose(expected, divisors, rtol=1e-4):
        raise CheckpointError(
            f"{header.path}: the frequency factors are not those of Llama 3. Export the checkpoint "
            "that the file was made from."
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        ORIGINAL: scaling.original_context,
    }
