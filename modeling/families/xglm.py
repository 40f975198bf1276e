"""XGLM (Lin et al. 2021): pre-norm, sinusoidal positions, a scaled embedding."""

import math

from ortolan.modeling.config import DecoderConfig, NormConfig, SinusoidalPositions
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.gpt_like import gpt_block, gpt_like, named
from ortolan.modeling.families.opt import LAYER
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Target

BASE_MODEL_PREFIX = "model"

OFFSET = 2
"""The first row of the table of positions that a text uses."""

WEIGHTS = {
    "model.embed_tokens.weight": Target("embedding.weight"),
    # A table that old versions of transformers saved.
    "model.embed_positions.weights": None,
    **named("model.layers.{}.", "blocks.{}.", LAYER),
    **named("model.", "", {"layer_norm": "final_norm"}),
    "lm_head.weight": Target("head.weight"),
}


def config(hf: ConfigReader) -> DecoderConfig:
    """An `XGLMConfig` of Hugging Face as a `DecoderConfig`."""
    width = hf.size("d_model")
    pad = hf.get("pad_token_id", int, 1)
    if pad >= OFFSET:
        raise ConfigError(
            f"{hf.name}: transformers zeroes the position that has the number of pad_token_id, and "
            f"{pad} is one that texts use. This checkpoint cannot be loaded faithfully."
        )
    block = gpt_block(
        width,
        heads=hf.size("attention_heads"),
        intermediate_size=hf.size("ffn_dim"),
        activation=hf.get("activation_function", str, "gelu"),
        norm=NormConfig(kind="layer", eps=1e-5),
    )
    return gpt_like(
        hf,
        model_type="xglm",
        width=width,
        context_length=hf.size("max_position_embeddings"),
        positions=SinusoidalPositions(layout="halves", offset=OFFSET, endpoint=True),
        embedding_scale=math.sqrt(width) if hf.get("scale_embedding", bool, True) else 1.0,
        blocks=(block,) * hf.size("num_layers", most=MAX_LAYERS),
    )
