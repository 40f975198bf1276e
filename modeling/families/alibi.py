"""Decoders whose positions are linear biases: BLOOM, MPT and, in some models, Falcon.

BLOOM (BigScience 2022) normalises the embedding; MPT (MosaicML 2023) has no other bias; Falcon
(Almazrouei et al. 2023) is parallel with few keys and values, and rotary in its later models.
"""

from dataclasses import replace

from ortolan.modeling.config import AlibiPositions, DecoderConfig, Placement
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.decoder import DecoderFormat, Keys, altered
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.norms import layer_norm
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import (
    DOWN,
    NORM_1,
    NORM_2,
    OUT,
    QKV,
    UP,
    grouped,
    layer,
    linear,
)
from ortolan.modeling.weights import Table, Target

_LAYER = "transformer.h.{}."

_FORMAT = DecoderFormat(
    keys=Keys(kv_heads=None, head_dim=None, eps="layer_norm_epsilon"),
    kind="mlp",
    activation="gelu",
    expansion=4,
    norm=layer_norm(1e-5),
    tied=True,
)


def _weights(config: DecoderConfig) -> Table:
    """The names of BLOOM and Falcon."""
    block = config.blocks[0]
    rows = grouped(block.attention.num_heads, block.attention.num_kv_heads)
    if block.placement == "parallel_norms":
        norms = {"ln_attn": NORM_1, "ln_mlp": NORM_2}
    else:
        norms = {"input_layernorm": NORM_1, "post_attention_layernorm": NORM_2}
    others = {"self_attention.dense": OUT, "mlp.dense_h_to_4h": UP, "mlp.dense_4h_to_h": DOWN}
    return {
        "transformer.word_embeddings.weight": Target("embedding.weight"),
        **layer(_LAYER, {"self_attention.query_key_value": QKV}, rows=rows),
        **layer(_LAYER, norms | others),
        **linear({"transformer.ln_f": "final_norm"}),
        "lm_head.weight": Target("head.weight"),
    }


def _bloom_weights(config: DecoderConfig) -> Table:
    norm = linear({"transformer.word_embeddings_layernorm": "embedding_norm"})
    return {**_weights(config), **norm}


def _falcon_weights(config: DecoderConfig) -> Table:
    # A table that old versions of transformers saved.
    return {**_weights(config), f"{_LAYER}self_attention.rotary_emb.inv_freq": None}


_MPT_WEIGHTS: Table = {
    "transformer.wte.weight": Target("embedding.weight"),
    **layer(
        "transformer.blocks.{}.",
        {
            "norm_1": NORM_1,
            "attn.Wqkv": QKV,
            "attn.out_proj": OUT,
            "norm_2": NORM_2,
            "ffn.up_proj": UP,
            "ffn.down_proj": DOWN,
        },
    ),
    **linear({"transformer.norm_f": "final_norm"}),
    "lm_head.weight": Target("head.weight"),
}


def _width(hf: ConfigReader) -> str:
    return "n_embed" if "n_embed" in hf else "hidden_size"


def _bloom(hf: ConfigReader) -> DecoderConfig:
    # Keys of the program that trained it: the MLP is four times as wide in any case.
    hf.skip("n_inner", "offset_alibi", "skip_bias_add", "skip_bias_add_qkv")
    normed = hf.get("apply_residual_connection_post_layernorm", bool, False)
    config = replace(
        _FORMAT,
        keys=replace(
            _FORMAT.keys,
            width=_width(hf),
            heads="num_attention_heads" if "num_attention_heads" in hf else "n_head",
            layers="n_layer",
            context="seq_length",
            hidden=None,
            activation=None,
        ),
        bias=True,
        mlp_bias=True,
        activation="gelu_new",
        placement="pre_residual" if normed else "pre",
        # Distances reach any length; this is how long the sequences of its training were.
        context=2048,
        positions=AlibiPositions(),
    ).read(hf)
    return replace(config, embedding_norm=config.final_norm)


def _falcon(hf: ConfigReader) -> DecoderConfig:
    # Read by no version of transformers.
    hf.skip("apply_residual_connection_post_layernorm", "rope_ratio")
    heads, new = hf.size("num_attention_heads"), hf.get("new_decoder_architecture", bool, False)
    kv_heads, one = hf.size("num_kv_heads", heads), hf.get("multi_query", bool, True)
    if not new:
        kv_heads = 1 if one else heads
    config = replace(
        _FORMAT,
        keys=replace(
            _FORMAT.keys, width=_width(hf), hidden="ffn_hidden_size", activation="activation"
        ),
        bias="bias",
        mlp_bias="bias",
        kv_heads=kv_heads,
        placement=_falcon_placement(hf, new=new),
        context=2048,
    ).read(hf)
    if not hf.get("alibi", bool, False):
        return config
    scale = config.blocks[0].attention.scale
    return replace(config, positions=AlibiPositions(scale=scale, rounded=True))


def _falcon_placement(hf: ConfigReader, *, new: bool) -> Placement:
    """The norms of a layer; `new` is the architecture of the larger models."""
    parallel = hf.get("parallel_attn", bool, True)
    norms = hf.size("num_ln_in_parallel_attn", 2, most=2)
    if not new:
        return "parallel" if parallel else "pre"
    if not parallel:
        raise ConfigError(
            f"{hf.name}: new_decoder_architecture needs parallel_attn. "
            "This checkpoint cannot be loaded faithfully."
        )
    return "parallel_norms" if norms == 2 else "parallel"


def _mpt(hf: ConfigReader) -> DecoderConfig:
    # Keys of the program that trained it; transformers has a single kind of each.
    hf.skip("embedding_fraction", "init_config", "init_device", "learned_pos_emb", "norm_type")
    hf.skip("verbose", "tokenizer_name", "emb_pdrop")
    hf.require("no_bias")
    if hf.get("expansion_ratio", int, 4) != 4 or hf.get("logit_scale", object, None) is not None:
        raise ConfigError(
            f"{hf.name}: expansion_ratio must be 4, and logit_scale must be absent. "
            "This checkpoint cannot be loaded faithfully."
        )
    config = replace(
        _FORMAT,
        keys=replace(
            _FORMAT.keys,
            width="d_model",
            heads="n_heads",
            layers="n_layers",
            context="max_seq_len",
            hidden=None,
            activation=None,
        ),
        norm=layer_norm(1e-5, bias=False),
        positions=AlibiPositions(),
    ).read(hf)
    scale, clip = _mpt_scores(hf.nested("attn_config") or ConfigReader({}))
    return altered(
        config, attention={"scale": scale or config.blocks[0].attention.scale, "clip": clip}
    )


def _mpt_scores(attention: ConfigReader) -> tuple[float | None, float | None]:
    """The scale of the scores and the bound of queries, keys and values, if present."""
    attention.skip("model_type", "attn_pdrop", "attn_impl", "attn_type")
    attention.require("alibi")
    for switch in ("prefix_lm", "qk_ln", "attn_uses_sequence_id"):
        attention.refuse(switch)
    if (most := attention.get("alibi_bias_max", int, 8)) != 8:
        raise ConfigError(
            f"{attention.name}: alibi_bias_max must be 8 (got {most}). "
            "This checkpoint cannot be loaded faithfully."
        )
    # Zero stands for none.
    clip = attention.get("clip_qkv", float, None) or None
    return attention.get("softmax_scale", float, None), clip


FAMILIES: dict[str, Family[DecoderConfig]] = {
    "bloom": Family(config=_bloom, weights=_bloom_weights, base_model_prefix="transformer"),
    "falcon": Family(config=_falcon, weights=_falcon_weights, base_model_prefix="transformer"),
    "mpt": Family(config=_mpt, weights=_MPT_WEIGHTS, base_model_prefix="transformer"),
}
