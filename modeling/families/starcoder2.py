"""StarCoder2 (Lozhkov et al. 2024): Llama's attention between layer norms and a plain mlp."""

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
            "self_attn.o_proj": OUT,
            "post_attention_layernorm": NORM_2,
            "mlp.c_fc": UP,
            "mlp.c_proj": DOWN,
        },
    ),
    **named("model.", "", {"norm": "final_norm"}),
    "lm_head.weight": Target("head.weight"),
}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `Starcoder2Config` of Hugging Face as a `DecoderConfig`."""
    # What the model has in any case, and what is left of its predecessor's keys.
    hf.skip("norm_type", "mlp_type", "activation_function", "layer_norm_epsilon")
    hf.skip("scale_attn_weights")
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    context_length = hf.size("max_position_embeddings")
    bias = hf.get("use_bias", bool, True)
    block = gpt_block(
        width,
        heads=heads,
        kv_heads=hf.size("num_key_value_heads"),
        intermediate_size=hf.size("intermediate_size"),
        activation=hf.get("hidden_act", str, "gelu_pytorch_tanh"),
        norm=NormConfig(kind="layer", eps=hf.get("norm_epsilon", float, 1e-5)),
        window=hf.size("sliding_window", None),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
    )
    return gpt_like(
        hf,
        model_type="starcoder2",
        width=width,
        context_length=context_length,
        positions=read_rotary(hf, head_dim=width // heads, context_length=context_length),
        blocks=(block,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
    )
