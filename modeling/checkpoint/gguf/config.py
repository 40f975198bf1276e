"""The config of Hugging Face that a GGUF file stands for."""

from collections.abc import Mapping

from ortolan.modeling.checkpoint.gguf.architectures import ARCHITECTURES, Architecture
from ortolan.modeling.checkpoint.gguf.header import Header, Value
from ortolan.modeling.checkpoint.gguf.rope import rope_values
from ortolan.modeling.errors import CheckpointError

ARCHITECTURE = "general.architecture"

VOCABULARY = "token_embd.weight"

SPECIAL_IDS = {
    "bos_token_id": ("bos_token_id",),
    "eos_token_id": ("eos_token_id", "eot_token_id", "eom_token_id"),
    "pad_token_id": ("padding_token_id",),
}
"""Ids of a config, and their keys below `tokenizer.ggml`."""

DERIVED = ("vocab_size", "attention.value_length", "rope.dimension_count", "tensor_data_layout")
"""Keys that say what shapes say, or that are read for other values."""

LAYERS_OF_27B = {"gemma2": 46, "gemma3_text": 62}
"""Of these, each head has its share of the width for a scale, not its own width."""


def architecture_of(header: Header) -> Architecture:
    """The architecture of a file.

    Raises:
        CheckpointError: one that Ortolan does not read.
    """
    name = header.metadata.get(ARCHITECTURE)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise CheckpointError(
            f"{header.path}: expected {ARCHITECTURE} to be one of {', '.join(ARCHITECTURES)}, got "
            f"{name!r:.40}. Export the checkpoint that the file was made from."
        )
    return ARCHITECTURES[name]


def hf_values(header: Header) -> dict[str, object]:
    """The values of the config.json that a file stands for.

    Raises:
        CheckpointError: an architecture that Ortolan does not read, a file that is one of several,
            or one without its table of tokens.
    """
    architecture = architecture_of(header)
    if header.metadata.get("split.count", 1) not in (0, 1):
        raise CheckpointError(
            f"{header.path}: expected a whole model, got one file of "
            f"{header.metadata['split.count']}. Merge them with llama.cpp's gguf-split."
        )
    if VOCABULARY not in header.tensors:
        raise CheckpointError(
            f"{header.path}: expected the tensor {VOCABULARY}, got none. Is this a language model?"
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
                values[name] = value
        elif key not in DERIVED and key not in scaling:
            values[f"{header.metadata[ARCHITECTURE]}.{key}"] = value
    values |= rope_values(header, own, partial=architecture.partial)
    return values | _of_family(values, header)


def own_values(header: Header) -> dict[str, Value]:
    """Values below the architecture's name."""
    prefix = f"{header.metadata[ARCHITECTURE]}."
    return {
        key.removeprefix(prefix): value
        for key, value in header.metadata.items()
        if key.startswith(prefix)
    }


def special_ids(metadata: Mapping[str, Value]) -> dict[str, object]:
    """Ids with a meaning, under the keys of a config."""
    found: dict[str, object] = {}
    for name, keys in SPECIAL_IDS.items():
        ids = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
        known = list(dict.fromkeys(i for i in ids if isinstance(i, int)))
        found[name] = known if len(known) > 1 else next(iter(known), None)
    return found


def _of_family(values: Mapping[str, object], header: Header) -> dict[str, object]:
    """Values that a family has and no key of a file says."""
    has = header.tensors.keys()
    match values["model_type"]:
        case "llama" | "smollm3" | "granite" | "arcee" | "nemotron" | "seed_oss":
            return {
                "attention_bias": "blk.0.attn_q.bias" in has,
                "mlp_bias": "blk.0.ffn_up.bias" in has,
            }
        case "cohere":
            return {"use_qk_norm": "blk.0.attn_q_norm.weight" in has}
        case "phi":
            return {"qk_layernorm": "blk.0.attn_q_norm.weight" in has}
        case "ernie4_5":
            return {"use_bias": "blk.0.attn_q.bias" in has}
        case "gemma2" | "gemma3_text" as family:
            return _of_gemma(values, LAYERS_OF_27B[family])
        case "stablelm":
            return {
                "use_qkv_bias": "blk.0.attn_q.bias" in has,
                "qk_layernorm": "blk.0.attn_q_norm.weight" in has,
            }
        case "falcon":
            is_new = "blk.0.attn_norm_2.weight" in has
            return {"new_decoder_architecture": is_new, "multi_query": not is_new}
        case _:
            return {}


def _of_gemma(values: Mapping[str, object], layers_of_27b: int) -> dict[str, object]:
    width, heads = values.get("hidden_size"), values.get("num_attention_heads")
    scalar = values.get("head_dim", 256)
    if values.get("num_hidden_layers") == layers_of_27b and isinstance(width, int):
        scalar = width // heads if isinstance(heads, int) and heads else scalar
    return {"query_pre_attn_scalar": scalar}
