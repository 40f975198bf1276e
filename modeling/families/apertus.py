"""Apertus (Swiss AI 2025): Llama with norms of queries and keys, and a trained activation."""

from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, NormConfig
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
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.weights import Target

BASE_MODEL_PREFIX = "model"

WEIGHTS = {
    "model.embed_tokens.weight": Target("embedding.weight"),
    **named(
        "model.layers.{}.",
        "blocks.{}.",
        {
            "attention_layernorm": NORM_1,
            "self_attn.q_proj": QKV,
            "self_attn.k_proj": QKV,
            "self_attn.v_proj": QKV,
            "self_attn.q_norm": "attention.query_norm",
            "self_attn.k_norm": "attention.key_norm",
            "self_attn.o_proj": OUT,
            "feedforward_layernorm": NORM_2,
            "mlp.up_proj": UP,
            "mlp.down_proj": DOWN,
        },
    ),
    "model.layers.{}.mlp.act_fn.alpha_p": Target("blocks.{}.feed_forward.activation.right"),
    "model.layers.{}.mlp.act_fn.alpha_n": Target("blocks.{}.feed_forward.activation.left"),
    # The same two numbers in every model.
    "model.layers.{}.mlp.act_fn.beta": None,
    "model.layers.{}.mlp.act_fn.eps": None,
    "model.norm.weight": Target("final_norm.weight"),
    "lm_head.weight": Target("head.weight"),
}


def config(hf: ConfigReader) -> DecoderConfig:
    """An `ApertusConfig` of Hugging Face as a `DecoderConfig`.

    Raises:
        ConfigError: another activation, or rotary positions that are left to a default: no
            published model has these.
    """
    if (activation := hf.get("hidden_act", str, "xielu")) != "xielu":
        raise ConfigError(
            f"config.json: expected hidden_act 'xielu', got {activation!r:.40}. "
            "This checkpoint cannot be loaded faithfully."
        )
    if not (hf.nested("rope_scaling") or hf.nested("rope_parameters")):
        raise ConfigError(
            "config.json: expected rope_scaling or rope_parameters, got neither. "
            "Is this the model's own config?"
        )
    # Of the program that trained it; transformers reads neither.
    hf.skip("post_norm", "qk_norm", "mlp_bias")
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    context_length = hf.size("max_position_embeddings")
    bias = hf.get("attention_bias", bool, False)
    norm = NormConfig(kind="rms", eps=hf.get("rms_norm_eps", float, 1e-5))
    block = gpt_block(
        width,
        heads=heads,
        kv_heads=hf.size("num_key_value_heads", heads),
        intermediate_size=hf.size("intermediate_size"),
        activation="relu",
        norm=norm,
        query_key_norm=norm,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=False,
    )
    trained = replace(block, feed_forward=replace(block.dense, activation="xielu"))
    return gpt_like(
        hf,
        model_type="apertus",
        width=width,
        context_length=context_length,
        positions=read_rotary(
            hf, head_dim=width // heads, context_length=context_length, theta=12_000_000.0
        ),
        blocks=(trained,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
        tied=False,
    )
