"""CTRL (Keskar et al. 2019): pre-norm, sinusoidal positions, a scaled embedding."""

import math
from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, NormConfig, SinusoidalPositions
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

BASE_MODEL_PREFIX = "transformer"

WEIGHTS = {
    "transformer.w.weight": Target("embedding.weight"),
    **named(
        "transformer.h.{}.",
        "blocks.{}.",
        {
            "layernorm1": NORM_1,
            "multi_head_attention.Wq": QKV,
            "multi_head_attention.Wk": QKV,
            "multi_head_attention.Wv": QKV,
            "multi_head_attention.dense": OUT,
            "layernorm2": NORM_2,
            "ffn.0": UP,
            "ffn.2": DOWN,
        },
    ),
    **named("transformer.", "", {"layernorm": "final_norm"}),
    "lm_head.weight": Target("head.weight"),
    "lm_head.bias": Target("head_bias"),
}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `CTRLConfig` of Hugging Face as a `DecoderConfig`."""
    hf.skip("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels")
    hf.skip("from_tf", "n_ctx")
    width = hf.size("n_embd")
    norm = NormConfig(kind="layer", eps=1e-6)
    block = gpt_block(
        width,
        heads=hf.size("n_head"),
        intermediate_size=hf.size("dff"),
        activation="relu",
        norm=norm,
    )
    decoder = gpt_like(
        hf,
        model_type="ctrl",
        width=width,
        context_length=hf.size("n_positions"),
        positions=SinusoidalPositions(layout="halves"),
        head_bias=True,
        embedding_scale=math.sqrt(width),
        blocks=(block,) * hf.size("n_layer", most=MAX_LAYERS),
    )
    # The norms of the layers have a fixed number, whatever the config says.
    last = replace(norm, eps=hf.get("layer_norm_epsilon", float, 1e-6))
    return replace(decoder, final_norm=last)
