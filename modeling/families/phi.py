"""Phi-1, 1.5 and 2 (Li et al. 2023): attention and mlp side by side, biases everywhere."""

from ortolan.modeling.config import DecoderConfig, NormConfig
from ortolan.modeling.families.gpt_like import (
    DOWN,
    NORM_1,
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
            "input_layernorm": NORM_1,
            "self_attn.q_proj": QKV,
            "self_attn.k_proj": QKV,
            "self_attn.v_proj": QKV,
            "self_attn.dense": OUT,
            "self_attn.q_layernorm": "attention.query_norm",
            "self_attn.k_layernorm": "attention.key_norm",
            "mlp.fc1": UP,
            "mlp.fc2": DOWN,
        },
    ),
    **named("model.", "", {"final_layernorm": "final_norm"}),
    "lm_head.weight": Target("head.weight"),
    "lm_head.bias": Target("head_bias"),
    # A table that old versions of transformers saved.
    "model.layers.{}.self_attn.rotary_emb.inv_freq": None,
}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `PhiConfig` of Hugging Face as a `DecoderConfig`."""
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    context_length = hf.size("max_position_embeddings")
    norm = NormConfig(kind="layer", eps=hf.get("layer_norm_eps", float, 1e-5))
    block = gpt_block(
        width,
        heads=heads,
        kv_heads=hf.size("num_key_value_heads", heads),
        intermediate_size=hf.size("intermediate_size"),
        activation=hf.get("hidden_act", str, "gelu_new"),
        norm=norm,
        query_key_norm=norm if hf.get("qk_layernorm", bool, False) else None,
        placement="parallel",
    )
    return gpt_like(
        hf,
        model_type="phi",
        width=width,
        context_length=context_length,
        positions=read_rotary(
            hf, head_dim=width // heads, context_length=context_length, fraction=0.5
        ),
        tied=False,
        head_bias=True,
        blocks=(block,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
    )
