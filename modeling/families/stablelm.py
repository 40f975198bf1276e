"""StableLM 2 (Bellagente et al. 2024): Llama with layer norms, some channels of a head rotated."""

from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, FeedForwardConfig, NormConfig
from ortolan.modeling.families import llama
from ortolan.modeling.families.gpt_like import NORM_1, NORM_2, gpt_like, named
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotary

BASE_MODEL_PREFIX = llama.BASE_MODEL_PREFIX

WEIGHTS = {
    **llama.WEIGHTS,
    **named(
        "model.layers.{}.",
        "blocks.{}.",
        {"input_layernorm": NORM_1, "post_attention_layernorm": NORM_2},
    ),
    **named("model.", "", {"norm": "final_norm"}),
}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `StableLmConfig` of Hugging Face as a `DecoderConfig`."""
    # A norm of its own for each head.
    hf.refuse("qk_layernorm")
    hf.skip("norm_eps", "rotary_scaling_factor")
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    context_length = hf.size("max_position_embeddings")
    activation = hf.get("hidden_act", str, "silu")
    decoder = gpt_like(
        hf,
        model_type="stablelm",
        width=width,
        heads=heads,
        kv_heads=hf.size("num_key_value_heads"),
        layers=hf.size("num_hidden_layers", most=MAX_LAYERS),
        context_length=context_length,
        positions=read_rotary(
            hf, head_dim=width // heads, context_length=context_length, fraction=0.25
        ),
        intermediate_size=hf.size("intermediate_size"),
        activation=activation,
        norm=NormConfig(kind="layer", eps=hf.get("layer_norm_eps", float, 1e-5)),
        qkv_bias=hf.get("use_qkv_bias", bool, False),
        out_bias=False,
        mlp_bias=False,
        tied=False,
        placement="parallel" if hf.get("use_parallel_residual", bool, False) else "pre",
    )
    (block,) = set(decoder.blocks)
    gated: FeedForwardConfig = replace(block.feed_forward, kind="gated")
    return replace(decoder, blocks=(replace(block, feed_forward=gated),) * len(decoder.blocks))
