"""Falcon (Almazrouei et al. 2023): attention and mlp side by side, few keys and values."""

from ortolan.modeling.config import AlibiPositions, DecoderConfig, NormConfig, Placement
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.gpt_like import (
    DOWN,
    NORM_1,
    NORM_2,
    OUT,
    QKV,
    UP,
    gpt_block,
    gpt_like,
    grouped,
    named,
)
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = "transformer"


def WEIGHTS(config: DecoderConfig) -> Table:  # noqa: N802 - a module's constant
    """Published names to ours."""
    block = config.blocks[0]
    rows = grouped(block.attention.num_heads, block.attention.num_kv_heads)
    if block.placement == "parallel_norms":
        norms = {"ln_attn": NORM_1, "ln_mlp": NORM_2}
    else:
        norms = {"input_layernorm": NORM_1, "post_attention_layernorm": NORM_2}
    others = {
        "self_attention.dense": OUT,
        "mlp.dense_h_to_4h": UP,
        "mlp.dense_4h_to_h": DOWN,
    }
    layer = "transformer.h.{}."
    return {
        "transformer.word_embeddings.weight": Target("embedding.weight"),
        **named(layer, "blocks.{}.", {"self_attention.query_key_value": QKV}, rows=rows),
        **named(layer, "blocks.{}.", norms | others),
        **named("transformer.", "", {"ln_f": "final_norm"}),
        "lm_head.weight": Target("head.weight"),
        # A table that old versions of transformers saved.
        f"{layer}self_attention.rotary_emb.inv_freq": None,
    }


def config(hf: ConfigReader) -> DecoderConfig:
    """A `FalconConfig` of Hugging Face as a `DecoderConfig`."""
    # Read by no version of transformers.
    hf.skip("apply_residual_connection_post_layernorm", "rope_ratio")
    width = hf.size("n_embed" if "n_embed" in hf else "hidden_size")
    heads = hf.size("num_attention_heads")
    context_length = hf.size("max_position_embeddings", 2048)
    grouped_heads = hf.get("new_decoder_architecture", bool, False)
    kv_heads, one = hf.size("num_kv_heads", heads), hf.get("multi_query", bool, True)
    if not grouped_heads:
        kv_heads = 1 if one else heads
    bias = hf.get("bias", bool, False)
    block = gpt_block(
        width,
        heads=heads,
        kv_heads=kv_heads,
        intermediate_size=hf.size("ffn_hidden_size", 4 * width),
        activation=hf.get("activation", str, "gelu"),
        norm=NormConfig(kind="layer", eps=hf.get("layer_norm_epsilon", float, 1e-5)),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        placement=_placement(hf, new=grouped_heads),
    )
    rotary = read_rotary(hf, head_dim=width // heads, context_length=context_length)
    return gpt_like(
        hf,
        model_type="falcon",
        width=width,
        context_length=context_length,
        positions=AlibiPositions(scale=block.attention.scale, rounded=True)
        if hf.get("alibi", bool, False)
        else rotary,
        blocks=(block,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
    )


def _placement(hf: ConfigReader, *, new: bool) -> Placement:
    """Where a layer has its norms; `new` is of the larger models."""
    parallel = hf.get("parallel_attn", bool, True)
    norms = hf.size("num_ln_in_parallel_attn", 2, most=2)
    if not new:
        return "parallel" if parallel else "pre"
    if not parallel:
        raise ConfigError(
            "config.json: expected parallel_attn true beside new_decoder_architecture, got false. "
            "This checkpoint cannot be loaded faithfully."
        )
    return "parallel_norms" if norms == 2 else "parallel"
