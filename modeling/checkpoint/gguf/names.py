"""Hugging Face names of the tensors of GGUF files, by architecture.

Names leave out `.weight` and `.bias`; the first `{}` is the number of a layer, the second one that
of an expert, which a file stacks. The package gguf knows their names in files of an architecture.
"""

from collections.abc import Mapping
from functools import cache

Names = tuple[str, ...]


def _below(prefix: str, names: str) -> Names:
    return tuple(f"{prefix}.{name}" for name in names.split())


LLAMA = (
    *_below("model", "embed_tokens norm"),
    *_below(
        "model.layers.{}",
        "input_layernorm post_attention_layernorm pre_feedforward_layernorm "
        "post_feedforward_layernorm mlp.gate",
    ),
    *_below("model.layers.{}.self_attn", "q_proj k_proj v_proj o_proj q_norm k_norm qkv_proj"),
    *_below("model.layers.{}.mlp", "gate_proj up_proj down_proj"),
    *_below("model.layers.{}.mlp.experts.{}", "gate_proj up_proj down_proj"),
)

PHI3 = (*LLAMA, "model.layers.{}.mlp.gate_up_proj")

STARCODER2 = (*LLAMA, *_below("model.layers.{}.mlp", "c_fc c_proj"))

PHI2 = (
    *(*LLAMA, "model.final_layernorm"),
    *_below("model.layers.{}", "self_attn.dense mlp.fc1 mlp.fc2"),
)

GPT2 = (
    *_below("transformer", "wte wpe ln_f"),
    *_below("transformer.h.{}", "ln_1 ln_2 attn.c_attn attn.c_proj mlp.c_fc mlp.c_proj"),
)

BLOOM = (
    *_below("transformer", "word_embeddings word_embeddings_layernorm ln_f"),
    *_below("transformer.h.{}", "input_layernorm post_attention_layernorm"),
    *_below("transformer.h.{}.self_attention", "query_key_value dense"),
    *_below("transformer.h.{}.mlp", "dense_h_to_4h dense_4h_to_h"),
)

FALCON_NORMS = _below("transformer.h.{}", "ln_mlp ln_attn")
"""Of the Falcon models with two norms in a layer; GGUF has one name for the first of either."""

GPT_NEOX = (
    *_below("gpt_neox", "embed_in final_layer_norm"),
    "embed_out",
    *_below("gpt_neox.layers.{}", "input_layernorm post_attention_layernorm"),
    *_below("gpt_neox.layers.{}.attention", "query_key_value dense"),
    *_below("gpt_neox.layers.{}.mlp", "dense_h_to_4h dense_4h_to_h"),
)


@cache
def names_in_files(architecture: str, names: Names) -> Mapping[str, str]:
    """Names by those in files of an architecture; of several, the last one."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    (number,) = (key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    known = get_tensor_name_map(number, 1)
    in_files = {"output": "lm_head"}  # left out for types that are always tied
    for name in names:
        first = name.replace("{}", "0", 1).replace(".{}", "")
        # some are known without the prefix of the model
        stored = known.get_name(first) or known.get_name(first.partition(".")[2])
        if stored is not None:
            in_files[stored.replace("blk.0.", "blk.{}.")] = name
    return in_files
