"""Families whose queries, keys and values are projected from latents (DeepSeek-AI 2024, "MLA").

Youtu (2025), and with mixtures of experts DeepSeek V2 and V3 (2024) and GLM 4.7 Flash (2026). V2
chooses experts by a softmax, and is read where it chooses among all of them.
"""

import math
from collections.abc import Container

from ortolan.modeling.config import DecoderConfig, LatentConfig
from ortolan.modeling.families import llama
from ortolan.modeling.families.decoder import DecoderFormat, altered
from ortolan.modeling.families.experts import (
    SIGMOID_WEIGHTS,
    check_choice,
    read_mixture,
    read_mlp_kinds,
    read_sigmoid_mixture,
    with_experts,
)
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.norms import rms
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.families.tables import linear, without
from ortolan.modeling.weights import Entry, Table

_ATTENTION = {
    "q_proj": "query",
    "q_a_proj": "query_latent",
    "q_a_layernorm": "query_norm",
    "q_b_proj": "query",
    "kv_a_proj_with_mqa": "latent",
    "kv_a_layernorm": "norm",
    "kv_b_proj": "key_value",
}
"""Published modules, and ours in the projection of an attention."""


def _weights(config: DecoderConfig) -> dict[str, Entry]:
    """Queries have one of two names, depending on whether they are projected from latents."""
    latent = config.blocks[0].attention.latent
    direct = latent is not None and latent.query_rank is None
    unused = ("q_a_proj", "q_a_layernorm", "q_b_proj") if direct else ("q_proj",)
    modules = {theirs: ours for theirs, ours in _ATTENTION.items() if theirs not in unused}
    return {
        **without(llama.WEIGHTS, ".q_proj.", ".k_proj.", ".v_proj."),
        **linear(modules, "model.layers.{}.self_attn.", "blocks.{}.attention.qkv."),
    }


def _mixture_weights(config: DecoderConfig) -> Table:
    experts = {name: target for name, target in SIGMOID_WEIGHTS.items() if ".mlp." in name}
    # Layers after the last one predict further tokens, for drafts.
    return {**_weights(config), **experts, f"model.layers.{len(config.blocks)}.*": None}


def _latent(
    hf: ConfigReader, *, interleaved: bool, fraction: float | None = None, tied: bool = False
) -> DecoderConfig:
    """A Llama whose attention has latents; `head_dim` in its config is that of the rotated part."""
    hf.skip("qk_head_dim")
    rotated = hf.size("qk_rope_head_dim")
    head_dim = hf.size("qk_nope_head_dim") + rotated
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    bias = hf.get("attention_bias", bool, False)
    latent = LatentConfig(
        query_rank=hf.size("q_lora_rank", None),
        rank=hf.size("kv_lora_rank"),
        rotated=rotated,
        norm=rms(1e-6),
        bias=bias,
    )
    positions = read_rotary(
        hf,
        head_dim=rotated,
        context_length=hf.size("max_position_embeddings"),
        fraction=fraction,
        interleaved=interleaved,
    )
    config = DecoderFormat(
        out_bias=bias,
        mlp_bias="mlp_bias",
        head_dim=head_dim,
        norm=rms(1e-6),
        positions=positions,
        tied=tied,
    ).read(hf)
    return altered(
        config,
        attention={
            "head_dim": head_dim,
            "scale": head_dim**-0.5 * _attention_factor(hf) ** 2,
            "value_dim": hf.size("v_head_dim", width // heads),
            "latent": latent,
        },
    )


def _attention_factor(hf: ConfigReader) -> float:
    """Factor on queries and on keys where positions are scaled (Peng et al. 2023)."""
    rope = hf.nested("rope_scaling") or hf.nested("rope_parameters") or ConfigReader({})
    kind = rope.get("rope_type", str, None) or rope.get("type", str, "default")
    weight = rope.get("mscale_all_dim", float, 0.0)
    if kind == "default" or not weight:
        return 1.0
    factor = rope.get("factor", float)
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _youtu(hf: ConfigReader) -> DecoderConfig:
    hf.skip("embedding_initializer_range")
    return _latent(hf, interleaved=hf.get("rope_interleave", bool, True), tied=True)


def _deepseek_v2(hf: ConfigReader) -> DecoderConfig:
    check_choice(hf, "topk_method", "greedy")
    check_choice(hf, "scoring_func", "softmax")
    # transformers would not normalise, the original does.
    hf.refuse("norm_topk_prob")
    hf.skip("n_group", "topk_group", "moe_layer_freq", "ep_size", "aux_loss_alpha", "seq_aux")
    shared = hf.get("n_shared_experts", int, 2) * hf.size("moe_intermediate_size")
    mixture = read_mixture(
        hf,
        count="n_routed_experts",
        normalised=False,
        scale=hf.get("routed_scaling_factor", float, 1.0),
        shared_size=shared or None,
    )
    dense = range(hf.get("first_k_dense_replace", int, 0))
    return with_experts(_latent(hf, interleaved=True), mixture, dense=dense)


def _sigmoid_mixture(
    hf: ConfigReader, dense: Container[int], *, fraction: float | None = None
) -> DecoderConfig:
    interleaved = hf.get("rope_interleave", bool, True)
    config = _latent(hf, interleaved=interleaved, fraction=fraction)
    return with_experts(config, read_sigmoid_mixture(hf), dense=dense)


def _deepseek_v3(hf: ConfigReader) -> DecoderConfig:
    hf.skip("moe_layer_freq")
    return _sigmoid_mixture(hf, range(hf.get("first_k_dense_replace", int, 3)))


def _glm4_moe_lite(hf: ConfigReader) -> DecoderConfig:
    # The list of kinds says it; without a list, only the first layer is dense.
    hf.skip("first_k_dense_replace")
    return _sigmoid_mixture(hf, read_mlp_kinds(hf, ["dense"]), fraction=1.0)


FAMILIES: dict[str, Family[DecoderConfig]] = {
    "youtu": Family(config=_youtu, weights=_weights),
    **{
        name: Family(config=config, weights=_mixture_weights)
        for name, config in {
            "deepseek_v2": _deepseek_v2,
            "deepseek_v3": _deepseek_v3,
            "glm4_moe_lite": _glm4_moe_lite,
        }.items()
    },
}
