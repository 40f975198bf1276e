"""XGLM (Lin et al. 2021): sinusoidal positions, and embeddings scaled by the root of the width."""

import math

from ortolan.modeling.config import DecoderConfig, SinusoidalPositions
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.decoder import DecoderFormat, Keys, altered
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.norms import layer_norm
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import DOWN, NORM_1, NORM_2, OUT, UP, layer, linear, qkv
from ortolan.modeling.weights import Table, Target

OFFSET = 2
"""Row of the table of positions that the first token reads."""

_WEIGHTS: Table = {
    "model.embed_tokens.weight": Target("embedding.weight"),
    **layer(
        "model.layers.{}.",
        {
            **qkv("self_attn.{}_proj"),
            "self_attn.out_proj": OUT,
            "self_attn_layer_norm": NORM_1,
            "fc1": UP,
            "fc2": DOWN,
            "final_layer_norm": NORM_2,
        },
    ),
    **linear({"model.layer_norm": "final_norm"}),
    "lm_head.weight": Target("head.weight"),
    # A table that old versions of transformers saved.
    "model.embed_positions.weights": None,
}


def _config(hf: ConfigReader) -> DecoderConfig:
    pad = hf.get("pad_token_id", int, 1)
    if pad >= OFFSET:
        raise ConfigError(
            f"{hf.name}: transformers zeroes the position whose number is pad_token_id, and "
            f"{pad} is one that tokens use. This checkpoint cannot be loaded faithfully."
        )
    config = DecoderFormat(
        keys=Keys(
            width="d_model",
            heads="attention_heads",
            kv_heads=None,
            head_dim=None,
            layers="num_layers",
            hidden="ffn_dim",
            activation="activation_function",
            eps=None,
        ),
        bias=True,
        mlp_bias=True,
        kind="mlp",
        activation="gelu",
        norm=layer_norm(1e-5),
        positions=SinusoidalPositions(offset=OFFSET, endpoint=True),
        tied=True,
    ).read(hf)
    scaled = hf.get("scale_embedding", bool, True)
    return altered(config, embedding_scale=math.sqrt(config.hidden_size) if scaled else 1.0)


FAMILIES: dict[str, Family[DecoderConfig]] = {"xglm": Family(config=_config, weights=_WEIGHTS)}
