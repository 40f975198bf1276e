"""GGUF files of tiny models, written by the package gguf as converters write them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

KEYS = {
    "max_position_embeddings": "context_length",
    "n_positions": "context_length",
    "hidden_size": "embedding_length",
    "n_embd": "embedding_length",
    "num_hidden_layers": "block_count",
    "n_layer": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "n_head": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "norm_epsilon": "attention.layer_norm_epsilon",
    "norm_eps": "attention.layer_norm_epsilon",
    "clip_qkv": "attention.clamp_kqv",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "logit_scale": "logit_scale",
}
"""Keys of files by those of configs."""

Metadata = Mapping[str, Any]


def turned(rows: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys, the halves of each head in turn."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def write_gguf(
    file: Path,
    arch: str,
    model: PreTrainedModel,
    metadata: Metadata,
    *,
    change: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor,
    kinds: Mapping[str, str] | None = None,
    extra: Mapping[str, Tensor] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a model.

    Args:
        file: to write.
        arch: the architecture, as the file names it.
        model: of transformers.
        metadata: values; those below the architecture without its name, such as `block_count`.
        change: what a converter does to a tensor, by its name in the file.
        kinds: formats of tensors by their names in the file; F32 for others.
        extra: more tensors, by their names in the file.
        tensors: in place of the model's.
    """
    writer = gguf.GGUFWriter(file, arch)
    for key, value in metadata.items():
        add_metadata(writer, key if key.startswith("tokenizer.") else f"{arch}.{key}", value)
    (number,) = [key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch]
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    for name, tensor in (model.state_dict() if tensors is None else tensors).items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        ends = (".weight", ".bias")
        placed = names.get_name(name, ends) or names.get_name(name.split(".", 1)[1], ends)
        assert placed is not None, name
        _write(writer, placed, change(placed, tensor), (kinds or {}).get(placed, "F32"))
    for name, tensor in (extra or {}).items():
        _write(writer, name, tensor, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def metadata_of(model: PreTrainedModel) -> dict[str, Any]:
    """The values of a config under the keys of a file."""
    values = model.config.to_dict()
    metadata = {key: values[name] for name, key in KEYS.items() if values.get(name) is not None}
    theta = (values.get("rope_parameters") or {}).get("rope_theta")
    return metadata if theta is None else metadata | {"rope.freq_base": float(theta)}


def add_metadata(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _write(writer: gguf.GGUFWriter, name: str, tensor: Tensor, kind: str) -> None:
    values = tensor.detach().float().contiguous().numpy()
    number = gguf.GGMLQuantizationType[kind]
    data = gguf.quants.quantize(values, number)
    shaped = data if kind in ("F32", "F16") else np.ascontiguousarray(data)
    writer.add_tensor(name, shaped, raw_dtype=number)
