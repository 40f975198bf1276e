"""The image encoders of CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from ortolan.modeling.config import (
    AttentionPooling,
    EmbeddingHead,
    EncoderConfig,
    Head,
    PatchInput,
    Projection,
)
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.classifier import read_classifier
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import DOWN, NORM_1, NORM_2, OUT, UP, layer, linear, qkv
from ortolan.modeling.families.vit import read_vision
from ortolan.modeling.weights import Entry, Rows, Target

TOWER, PROJECTED, BOTH = "CLIPVisionModel", "CLIPVisionModelWithProjection", "CLIPModel"

SIGLIP_TOWER, SIGLIP_BOTH, SIGLIP2_BOTH = "SiglipVisionModel", "SiglipModel", "Siglip2Model"

PREFIX = "vision_model"

ACTIVATION = "gelu_pytorch_tanh"
"""Default of SigLIP."""

IMPLIED: Mapping[str, object] = {
    "model_type": "",  # that of the whole counts
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
"""Values that `vision_config` may leave out, in addition to the defaults below."""


def layers(prefix: str) -> dict[str, Entry]:
    """The weights of the layers of either encoder, with the published prefix."""
    return layer(
        f"{prefix}.encoder.layers.{{}}.",
        {
            **qkv("self_attn.{}_proj"),
            "self_attn.out_proj": OUT,
            "layer_norm1": NORM_1,
            "layer_norm2": NORM_2,
            "mlp.fc1": UP,
            "mlp.fc2": DOWN,
        },
    )


TOWER_WEIGHTS: dict[str, Entry] = {
    f"{PREFIX}.embeddings.class_embedding": Target("embedding.class_token"),
    f"{PREFIX}.embeddings.position_embedding.weight": Target("position_embedding.weight"),
    # The numbers 0, 1, ..., which old versions of transformers saved.
    f"{PREFIX}.embeddings.position_ids": None,
    **linear({f"{PREFIX}.embeddings.patch_embedding": "embedding.projection"}),
    **layers(PREFIX),
    **linear({f"{PREFIX}.post_layernorm": "final_norm"}),
}

CLIP_WEIGHTS: dict[str, Entry] = {
    **TOWER_WEIGHTS,
    # transformers' own spelling
    **linear({f"{PREFIX}.pre_layrnorm": "embedding_norm"}),
    "visual_projection.*": "projections.0.",
}

_OF_TEXT: dict[str, Entry] = {
    "text_model.*": None,
    "text_projection.weight": None,
    "logit_scale": None,
    "logit_bias": None,
}
"""Weights of the encoder of texts, and of the comparison of both."""

_POOL, _ATTENTION = "head.pool", "head.pool.attention"


def _thirds(kind: str) -> tuple[Target, Target]:
    """Queries, keys and values that are published in one tensor."""
    return (
        Target(f"{_ATTENTION}.q.{kind}", rows=Rows(1, 3, -1, ((0, 1),))),
        Target(f"{_ATTENTION}.kv.{kind}", rows=Rows(1, 3, -1, ((1, 3),))),
    )


_POOLED: dict[str, Entry] = {
    f"{PREFIX}.head.probe": Target(f"{_POOL}.query", leading=2),
    f"{PREFIX}.head.attention.in_proj_weight": _thirds("weight"),
    f"{PREFIX}.head.attention.in_proj_bias": _thirds("bias"),
    **linear(
        {
            "attention.out_proj": "attention.out",
            "layernorm": "norm",
            "mlp.fc1": "feed_forward.up",
            "mlp.fc2": "feed_forward.down",
        },
        f"{PREFIX}.head.",
        f"{_POOL}.",
    ),
}
"""Weights of SigLIP's pooling by attention."""


def side(
    hf: ConfigReader, name: Literal["vision", "text"], implied: Mapping[str, object]
) -> ConfigReader:
    """The config of one encoder of a model of both; all keys if the encoder is on its own."""
    old = hf.nested(f"{name}_config_dict", implied)
    if old is not None:
        hf.skip(f"{name}_config")  # old files have both, and transformers reads this one
    return old or hf.nested(f"{name}_config", implied) or hf


def _clip(hf: ConfigReader) -> EncoderConfig:
    """A tower on its own, or the images' side of both."""
    architecture = hf.architecture(TOWER, PROJECTED, BOTH)
    tower = hf
    if architecture == BOTH:
        hf.skip("text_config", "logit_scale_init_value", "text_config_dict")
        tower = side(hf, "vision", IMPLIED)
        tower.skip("projection_dim", "model_type")
    else:
        hf.skip("projection_dim")
    projections: tuple[Projection, ...] = ()
    if architecture != TOWER:
        width = hf.size("projection_dim", 512)
        projections = (Projection(width=width, bias=False, activation=None),)
    head = EmbeddingHead(
        pooling=("first",), projections=projections, normalised=architecture == BOTH
    )
    return replace(read_clip(tower, head), model_type=hf.get("model_type", str))


def read_clip(tower: ConfigReader, head: Head) -> EncoderConfig:
    """The image encoder of CLIP with a head."""
    config = read_vision(
        tower,
        head=head,
        eps=1e-5,
        hidden=tower.size("intermediate_size", 3072),
        activation="quick_gelu",
        patch=32,
    )
    return _biased(replace(config, embedding_norm=config.final_norm), bias=False)


def _siglip(hf: ConfigReader) -> EncoderConfig:
    """A classifier, or the images' side of both."""
    architecture = hf.architecture("SiglipForImageClassification", SIGLIP_BOTH)
    hf.skip("text_config")
    tower = side(hf, "vision", IMPLIED)
    tower.skip("model_type")
    if architecture == SIGLIP_BOTH:
        tower.require("vision_use_head")
        config = pooled_by_attention(tower, read_siglip(tower, None), normalised=True)
    else:
        tower.skip("vision_use_head")
        config = read_siglip(tower, read_classifier(hf, pooling="mean"))
    return replace(config, model_type=hf.get("model_type", str))


def _siglip_tower(hf: ConfigReader) -> EncoderConfig:
    """A tower on its own, with or without its pooling."""
    hf.architecture(SIGLIP_TOWER)
    config = read_siglip(hf, None)
    if hf.get("vision_use_head", bool, True):
        return pooled_by_attention(hf, config, normalised=False)
    return config


def pooled_by_attention(
    tower: ConfigReader, config: EncoderConfig, *, normalised: bool
) -> EncoderConfig:
    """SigLIP's encoder with its pooling, which has the sizes of a layer."""
    block = config.blocks[0]
    pooling = AttentionPooling(
        num_heads=block.attention.num_heads,
        intermediate_size=block.dense.intermediate_size,
        activation=read_activation(tower.get("hidden_act", str, ACTIVATION)),
        norm=block.norm,
    )
    return replace(config, head=EmbeddingHead(pooling=pooling, normalised=normalised))


def siglip_weights(config: EncoderConfig) -> dict[str, Entry]:
    """The weights of SigLIP; without its own pooling, those of it are left over."""
    match config.head:
        case EmbeddingHead():
            return TOWER_WEIGHTS | _OF_TEXT | _POOLED
        case _:
            classifier = linear({"classifier": "head.out"})
            return TOWER_WEIGHTS | _OF_TEXT | {f"{PREFIX}.head.*": None} | classifier


def read_siglip(tower: ConfigReader, head: Head | None) -> EncoderConfig:
    """The image encoder of SigLIP with a head."""
    config = read_vision(
        tower,
        head=head,
        eps=1e-6,
        hidden=tower.size("intermediate_size", 3072),
        activation=ACTIVATION,
        class_token=False,
    )
    return _biased(config, bias=True)


def _biased(config: EncoderConfig, *, bias: bool) -> EncoderConfig:
    """The config with a bias of patches, or without."""
    if not isinstance(config.input, PatchInput):
        raise TypeError("expected an encoder of images")
    return replace(config, input=replace(config.input, bias=bias))


FAMILIES: dict[str, Family[EncoderConfig]] = {
    "clip": Family(config=_clip, weights=CLIP_WEIGHTS | _OF_TEXT, base_model_prefix=PREFIX),
    "clip_vision_model": Family(config=_clip, weights=CLIP_WEIGHTS, base_model_prefix=PREFIX),
    "siglip": Family(config=_siglip, weights=siglip_weights, base_model_prefix=PREFIX),
    "siglip_vision_model": Family(
        config=_siglip_tower, weights=siglip_weights, base_model_prefix=PREFIX
    ),
}
