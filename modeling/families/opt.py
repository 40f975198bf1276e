"""OPT (Zhang et al. 2022), BioGPT (Luo et al. 2022) and XGLM (Lin et al. 2021).

OPT and Galactica have learned positions and a ReLU; BioGPT and XGLM scale the embedding, and the
positions of XGLM are sinusoidal.
"""

import math
from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, LearnedPositions, SinusoidalPositions
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.decoder import DecoderFormat, Keys, layer_norm
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import (
    DOWN,
    NORM_1,
    NORM_2,
    OUT,
    UP,
    layer,
    linear,
    qkv,
    without,
)
from ortolan.modeling.weights import Entry, Table, Target

OFFSET = 2
"""Row of the table of positions that the first token reads."""

_FORMAT = DecoderFormat(
    keys=Keys(kv_heads=None, head_dim=None, eps=None),
    bias=True,
    mlp_bias=True,
    kind="mlp",
    activation="gelu",
    norm=layer_norm(1e-5),
    positions=LearnedPositions(offset=OFFSET),
    tied=True,
)


def _weights(prefix: str, *, final: str = "layer_norm") -> dict[str, Entry]:
    return {
        f"{prefix}.embed_tokens.weight": Target("embedding.weight"),
        f"{prefix}.embed_positions.weight": Target("position_embedding.weight"),
        **layer(
            f"{prefix}.layers.{{}}.",
            {
                **qkv("self_attn.{}_proj"),
                "self_attn.out_proj": OUT,
                "self_attn_layer_norm": NORM_1,
                "fc1": UP,
                "fc2": DOWN,
                "final_layer_norm": NORM_2,
            },
        ),
        **linear({f"{prefix}.{final}": "final_norm"}),
        "lm_head.weight": Target("head.weight"),
    }


def _opt(hf: ConfigReader) -> DecoderConfig:
    width = hf.size("hidden_size")
    if (projected := hf.size("word_embed_proj_dim", width)) != width:
        raise ConfigError(
            f"{hf.name}: word_embed_proj_dim must be the hidden_size {width} (got {projected}). "
            "This checkpoint cannot be loaded faithfully."
        )
    affine = hf.get("layer_norm_elementwise_affine", bool, True)
    bias = hf.get("enable_bias", bool, True)
    config = replace(
        _FORMAT,
        keys=replace(_FORMAT.keys, hidden="ffn_dim", activation="activation_function"),
        bias=bias,
        mlp_bias=bias,
        activation="relu",
        norm=layer_norm(1e-5, scale=affine, bias=affine),
        placement="pre" if hf.get("do_layer_norm_before", bool, True) else "post",
    ).read(hf)
    removed = hf.get("_remove_final_layer_norm", bool, False)
    return replace(config, final_norm=None) if removed else config


def _scaled(hf: ConfigReader, form: DecoderFormat) -> DecoderConfig:
    config = form.read(hf)
    scaled = hf.get("scale_embedding", bool, True)
    return replace(config, embedding_scale=math.sqrt(config.hidden_size)) if scaled else config


def _biogpt(hf: ConfigReader) -> DecoderConfig:
    # transformers leaves the norms at their usual value.
    hf.skip("layer_norm_eps")
    return _scaled(hf, _FORMAT)


def _xglm(hf: ConfigReader) -> DecoderConfig:
    pad = hf.get("pad_token_id", int, 1)
    if pad >= OFFSET:
        raise ConfigError(
            f"{hf.name}: transformers zeroes the position whose number is pad_token_id, and "
            f"{pad} is one that tokens use. This checkpoint cannot be loaded faithfully."
        )
    keys = replace(
        _FORMAT.keys,
        width="d_model",
        heads="attention_heads",
        layers="num_layers",
        hidden="ffn_dim",
        activation="activation_function",
    )
    positions = SinusoidalPositions(layout="halves", offset=OFFSET, endpoint=True)
    return _scaled(hf, replace(_FORMAT, keys=keys, positions=positions))


_BIOGPT_WEIGHTS = _weights("biogpt")
_BIOGPT_WEIGHTS["output_projection.weight"] = _BIOGPT_WEIGHTS.pop("lm_head.weight")

_XGLM_WEIGHTS: Table = {
    **without(_weights("model"), "embed_positions"),
    # A table that old versions of transformers saved.
    "model.embed_positions.weights": None,
}

FAMILIES: dict[str, Family[DecoderConfig]] = {
    "opt": Family(config=_opt, weights=_weights("model.decoder", final="final_layer_norm")),
    "biogpt": Family(config=_biogpt, weights=_BIOGPT_WEIGHTS, base_model_prefix="biogpt"),
    "xglm": Family(config=_xglm, weights=_XGLM_WEIGHTS),
}
