"""Persimmon (Adept 2023): norms of queries and keys, half of the channels rotated."""

from ortolan.modeling.config import DecoderConfig, NormConfig
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

BASE_MODEL_PREFIX = "model"


def WEIGHTS(config: DecoderConfig) -> Table:  # noqa: N802 - a module's constant
    """Published names to ours."""
    heads, layers = config.blocks[0].attention.num_heads, "model.layers.{}."
    rows = grouped(heads, heads)
    return {
        "model.embed_tokens.weight": Target("embedding.weight"),
        **named(layers, "blocks.{}.", {"self_attn.query_key_value": QKV}, rows=rows),
        **named(
            layers,
            "blocks.{}.",
            {
                "input_layernorm": NORM_1,
                "self_attn.q_layernorm": "attention.query_norm",
                "self_attn.k_layernorm": "attention.key_norm",
                "self_attn.dense": OUT,
                "post_attention_layernorm": NORM_2,
                "mlp.dense_h_to_4h": UP,
                "mlp.dense_4h_to_h": DOWN,
            },
        ),
        **named("model.", "", {"final_layernorm": "final_norm"}),
        "lm_head.weight": Target("head.weight"),
        # A table that old versions of transformers saved.
        f"{layers}self_attn.rotary_emb.inv_freq": None,
    }


def config(hf: ConfigReader) -> DecoderConfig:
    """A `PersimmonConfig` of Hugging Face as a `DecoderConfig`."""
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    context_length = hf.size("max_position_embeddings")
    norm = NormConfig(kind="layer", eps=hf.get("layer_norm_eps", float, 1e-5))
    block = gpt_block(
        width,
        heads=heads,
        intermediate_size=hf.size("intermediate_size"),
        activation=hf.get("hidden_act", str, "relu2"),
        norm=norm,
        query_key_norm=norm if hf.get("qk_layernorm", bool, True) else None,
    )
    return gpt_like(
        hf,
        model_type="persimmon",
        width=width,
        context_length=context_length,
        positions=read_rotary(
            hf, head_dim=width // heads, context_length=context_length, fraction=0.5
        ),
        blocks=(block,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
        tied=False,
    )
