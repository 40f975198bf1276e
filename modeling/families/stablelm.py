"""StableLM 2 (Bellagente et al. 2024): Llama with layer norms, some channels of a head rotated."""

from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, FeedForwardConfig, NormConfig
from ortolan.modeling.families import llama
from ortolan.modeling.families.gpt_like import NORM_1, NORM_2, gpt_block, gpt_like, named
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
    block = gpt_block(
        width,
        heads=heads,
        kv_heads=hf.size("num_key_value_heads"),
        intermediate_size=hf.size("intermediate_size"),
        activation=hf.get("hidden_act", str, "silu"),
        norm=NormConfig(kind="layer", eps=hf.get("layer_norm_eps", float, 1e-5)),
        qkv_bias=hf.get("use_qkv_bias", bool, False),
        out_bias=False,
        mlp_bias=False,
        placement="parallel" if hf.get("use_parallel_residual", bool, False) else "pre",
    )
    gated: FeedForwardConfig = replace(block.dense, kind="gated")
    return gpt_like(
        hf,
        model_type="stablelm",
        width=width,
        context_length=context_length,
        positions=read_rotary(
            hf, head_dim=width // heads, context_length=context_length, fraction=0.25
        ),
        tied=False,
        blocks=(replace(block, feed_forward=gated),)
        * hf.size("num_hidden_layers", most=MAX_LAYERS),
    )


def hf_config(config: DecoderConfig) -> dict[str, object]:
    """The `config.json` of a StableLM that computes what `config` says."""
    block = config.blocks[0]
    keys = llama.llama_like_hf_config(config, architecture="StableLmForCausalLM")
    # Its heads share the width.
    del keys["head_dim"], keys["rms_norm_eps"]
    return {
        # Without this key another fraction is rotated.
        "partial_rotary_factor": 1.0,
        **keys,
        "layer_norm_eps": block.norm.eps,
        "use_qkv_bias": block.attention.qkv_bias,
        "use_parallel_residual": block.parallel,
    }
