"""BioGPT (Luo et al. 2022): pre-norm, learned positions, a scaled embedding."""

import math

from ortolan.modeling.config import DecoderConfig, LearnedPositions, NormConfig
from ortolan.modeling.families.gpt_like import gpt_block, gpt_like, named
from ortolan.modeling.families.opt import LAYER
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Target

BASE_MODEL_PREFIX = "biogpt"

WEIGHTS = {
    "biogpt.embed_tokens.weight": Target("embedding.weight"),
    "biogpt.embed_positions.weight": Target("position_embedding.weight"),
    **named("biogpt.layers.{}.", "blocks.{}.", LAYER),
    **named("biogpt.", "", {"layer_norm": "final_norm"}),
    "output_projection.weight": Target("head.weight"),
}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `BioGptConfig` of Hugging Face as a `DecoderConfig`."""
    # transformers leaves the norms at their usual value.
    hf.skip("layer_norm_eps")
    width = hf.size("hidden_size")
    block = gpt_block(
        width,
        heads=hf.size("num_attention_heads"),
        intermediate_size=hf.size("intermediate_size"),
        activation=hf.get("hidden_act", str, "gelu"),
        norm=NormConfig(kind="layer", eps=1e-5),
    )
    return gpt_like(
        hf,
        model_type="biogpt",
        width=width,
        context_length=hf.size("max_position_embeddings"),
        positions=LearnedPositions(offset=2),
        embedding_scale=math.sqrt(width) if hf.get("scale_embedding", bool, True) else 1.0,
        blocks=(block,) * hf.size("num_hidden_layers", most=MAX_LAYERS),
    )
