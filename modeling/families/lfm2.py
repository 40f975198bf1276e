"""LFM2 (Liquid AI 2025): short convolutions between two gates, and attention in some layers."""

from ortolan.modeling.config import DecoderConfig, ShortConvConfig
from ortolan.modeling.families.decoder import DecoderFormat, Keys
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import (
    CONV,
    FULL,
    layers_of,
    read_layer_kinds,
    with_mixers,
)
from ortolan.modeling.families.norms import rms
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import either, linear
from ortolan.modeling.weights import Table, Target

_LAYER = "model.layers.{}."

_WEIGHTS: Table = {
    "model.embed_tokens.weight": Target("embedding.weight"),
    f"{_LAYER}operator_norm.weight": either(
        "blocks.{}.attention_norm.weight", "blocks.{}.short_conv_norm.weight"
    ),
    **{
        f"{_LAYER}{theirs}.weight": Target(f"blocks.{{}}.{ours}.weight")
        for theirs, ours in {
            "self_attn.q_proj": "attention.qkv",
            "self_attn.k_proj": "attention.qkv",
            "self_attn.v_proj": "attention.qkv",
            "self_attn.q_layernorm": "attention.query_norm",
            "self_attn.k_layernorm": "attention.key_norm",
            "self_attn.out_proj": "attention.out",
            "ffn_norm": "feed_forward_norm",
            "feed_forward.w1": "feed_forward.gate",
            "feed_forward.w3": "feed_forward.up",
            "feed_forward.w2": "feed_forward.down",
        }.items()
    },
    **linear(
        {"in_proj": "project", "conv": "conv", "out_proj": "out"},
        f"{_LAYER}conv.",
        "blocks.{}.short_conv.",
    ),
    "model.embedding_norm.weight": Target("final_norm.weight"),
    "lm_head.weight": Target("head.weight"),
}


def _config(hf: ConfigReader) -> DecoderConfig:
    hf.skip("block_dim", "block_norm_eps", "block_use_swiglu", "conv_dim", "conv_dim_out")
    hf.skip("block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "num_heads")
    hf.skip("conv_use_xavier_init", "use_pos_enc")
    layers = range(layers_of(hf))
    attending = hf.get("full_attn_idxs", list, list(layers))
    kinds = read_layer_kinds(hf, [FULL if i in attending else CONV for i in layers], (FULL, CONV))
    config = DecoderFormat(
        keys=Keys(eps="norm_eps"),
        query_key_norm=True,
        hidden=_hidden_channels(hf),
        norm=rms(1e-5),
        theta=1e6,
        tied=hf.get("tie_embedding", bool, True),
    ).read(hf)
    conv = ShortConvConfig(
        channels=config.hidden_size,
        taps=hf.size("conv_L_cache", 3),
        bias=hf.get("conv_bias", bool, False),
    )
    return with_mixers(config, kinds, {CONV: conv})


def _hidden_channels(hf: ConfigReader) -> int:
    """Channels of the MLP: two thirds of the published number, rounded up to a multiple."""
    published = hf.size("block_ff_dim", hf.size("intermediate_size", 12_288))
    factor = hf.get("block_ffn_dim_multiplier", float, 1.0)
    multiple = hf.size("block_multiple_of", 256)
    if not hf.get("block_auto_adjust_ff_dim", bool, True):
        return published
    scaled = int(factor * int(2 * published / 3))
    return multiple * -(-scaled // multiple)


FAMILIES: dict[str, Family[DecoderConfig]] = {"lfm2": Family(config=_config, weights=_WEIGHTS)}
