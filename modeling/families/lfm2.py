"""LFM2 (Liquid AI 2025): short convolutions between two gates, and attention in some layers."""

from ortolan.modeling.config import DecoderConfig, NormConfig, ShortConvConfig
from ortolan.modeling.families import llama
from ortolan.modeling.families.layer_kinds import (
    CONV,
    FULL,
    either,
    read_layer_kinds,
    with_mixers,
)
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = llama.BASE_MODEL_PREFIX

_LAYER = "model.layers.{}."

WEIGHTS: Table = {
    "model.embed_tokens.weight": Target("embedding.weight"),
    f"{_LAYER}operator_norm.weight": either(
        "blocks.{}.attention_norm.weight", "blocks.{}.short_conv_norm.weight"
    ),
    **{
        f"{_LAYER}self_attn.{part}_proj.weight": Target("blocks.{}.attention.qkv.weight")
        for part in "qkv"
    },
    f"{_LAYER}self_attn.q_layernorm.weight": Target("blocks.{}.attention.query_norm.weight"),
    f"{_LAYER}self_attn.k_layernorm.weight": Target("blocks.{}.attention.key_norm.weight"),
    f"{_LAYER}self_attn.out_proj.weight": Target("blocks.{}.attention.out.weight"),
    **{
        f"{_LAYER}conv.{theirs}.{kind}": Target(f"blocks.{{}}.short_conv.{ours}.{kind}")
        for theirs, ours in {"in_proj": "project", "conv": "conv", "out_proj": "out"}.items()
        for kind in ("weight", "bias")
    },
    f"{_LAYER}ffn_norm.weight": Target("blocks.{}.feed_forward_norm.weight"),
    **{
        f"{_LAYER}feed_forward.{theirs}.weight": Target(f"blocks.{{}}.feed_forward.{ours}.weight")
        for theirs, ours in {"w1": "gate", "w3": "up", "w2": "down"}.items()
    },
    "model.embedding_norm.weight": Target("final_norm.weight"),
    "lm_head.weight": Target("head.weight"),
}


def config(hf: ConfigReader) -> DecoderConfig:
    """An `Lfm2Config` of Hugging Face as a `DecoderConfig`."""
    hf.skip("block_dim", "block_norm_eps", "block_use_swiglu", "conv_dim", "conv_dim_out")
    hf.skip("block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "num_heads")
    hf.skip("conv_use_xavier_init", "use_pos_enc")
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    attending = hf.get("full_attn_idxs", list, list(range(layers)))
    kinds = read_layer_kinds(
        hf, [FULL if i in attending else CONV for i in range(layers)], (FULL, CONV)
    )
    norm = NormConfig(kind="rms", eps=hf.get("norm_eps", float, 1e-5))
    made = llama.llama_like(
        hf,
        model_type="lfm2",
        theta=1e6,
        size=_hidden_channels(hf),
        norm=norm,
        tied=hf.get("tie_embedding", bool, True),
    )
    made = llama.altered(made, attention={"query_key_norm": norm})
    conv = ShortConvConfig(
        channels=made.hidden_size,
        taps=hf.size("conv_L_cache", 3),
        bias=hf.get("conv_bias", bool, False),
    )
    return with_mixers(made, kinds, {CONV: conv})


def _hidden_channels(hf: ConfigReader) -> int:
    """Channels of the mlp: two thirds of those that are named, rounded up to a multiple."""
    named = hf.size("block_ff_dim", hf.size("intermediate_size", 12_288))
    factor = hf.get("block_ffn_dim_multiplier", float, 1.0)
    multiple = hf.size("block_multiple_of", 256)
    if not hf.get("block_auto_adjust_ff_dim", bool, True):
        return named
    scaled = int(factor * int(2 * named / 3))
    return multiple * -(-scaled // multiple)
