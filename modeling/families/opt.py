"""OPT (Zhang et al. 2022) and Galactica: pre-norm, learned positions, an mlp with relu."""

from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, LearnedPositions, NormConfig
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
    named,
)
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Target

BASE_MODEL_PREFIX = "model"

LAYER = {
    "self_attn.q_proj": QKV,
    "self_attn.k_proj": QKV,
    "self_attn.v_proj": QKV,
    "self_attn.out_proj": OUT,
    "self_attn_layer_norm": NORM_1,
    "fc1": UP,
    "fc2": DOWN,
    "final_layer_norm": NORM_2,
}
"""The modules of a layer, as in fairseq."""

WEIGHTS = {
    "model.decoder.embed_tokens.weight": Target("embedding.weight"),
    "model.decoder.embed_positions.weight": Target("position_embedding.weight"),
    **named("model.decoder.layers.{}.", "blocks.{}.", LAYER),
    **named("model.decoder.", "", {"final_layer_norm": "final_norm"}),
    "lm_head.weight": Target("head.weight"),
}


def config(hf: ConfigReader) -> DecoderConfig:
    """An `OPTConfig` of Hugging Face as a `DecoderConfig`."""
    width = hf.size("hidden_size")
    if hf.size("word_embed_proj_dim", width) != width:
        raise ConfigError(
            f"config.json: expected word_embed_proj_dim {width}, the hidden_size, got another. "
            "This checkpoint cannot be loaded faithfully."
        )
    bias = hf.get("enable_bias", bool, True)
    affine = hf.get("layer_norm_elementwise_affine", bool, True)
    block = gpt_block(
        width,
        heads=hf.size("num_attention_heads"),
        intermediate_size=hf.size("ffn_dim"),
        activation=hf.get("activation_function", str, "relu"),
        norm=NormConfig(kind="layer", eps=1e-5, scale=affine, bias=affine),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        placement="pre" if hf.get("do_layer_norm_before", bool, True) else "post",
    )
    decoder = gpt_like(
        hf,
        model_type="opt",
        width=width,
        context_length=hf.size("max_position_embeddings"),
        positions=LearnedPositions(offset=2),
        blocks=(block,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
    )
    if hf.get("_remove_final_layer_norm", bool, False):
        return replace(decoder, final_norm=None)
    return decoder
