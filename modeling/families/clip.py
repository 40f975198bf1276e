"""The image encoders of CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023)."""

from dataclasses import replace

from ortolan.modeling.config import EmbeddingHead, EncoderConfig, Head, PatchInput, Projection
from ortolan.modeling.families.classifier import read_classifier
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import DOWN, NORM_1, NORM_2, OUT, UP, layer, linear, qkv
from ortolan.modeling.families.vit import read_vision
from ortolan.modeling.weights import Entry, Target

TOWER, PROJECTED, BOTH = "CLIPVisionModel", "CLIPVisionModelWithProjection", "CLIPModel"

PREFIX = "vision_model"

_LAYERS = layer(
    f"{PREFIX}.encoder.layers.{{}}.",
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
    **_LAYERS,
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


def _clip(hf: ConfigReader) -> EncoderConfig:
    """A tower on its own, or the images' side of both."""
    architecture = hf.architecture(TOWER, PROJECTED, BOTH)
    tower = hf
    if architecture == BOTH:
        hf.skip("text_config", "logit_scale_init_value", "text_config_dict")
        tower = hf.nested("vision_config") or hf
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
    hf.architecture("SiglipForImageClassification")
    hf.skip("text_config")
    tower = hf.nested("vision_config") or hf
    # The classifier pools by the mean, not by attention.
    tower.skip("vision_use_head", "model_type")
    head: Head = read_classifier(hf, pooling="mean")
    return replace(read_siglip(tower, head), model_type=hf.get("model_type", str))


def read_siglip(tower: ConfigReader, head: Head) -> EncoderConfig:
    """The image encoder of SigLIP with a head."""
    config = read_vision(
        tower,
        head=head,
        eps=1e-6,
        hidden=tower.size("intermediate_size", 3072),
        activation="gelu_pytorch_tanh",
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
    "siglip": Family(
        config=_siglip,
        weights={
            **TOWER_WEIGHTS,
            **_OF_TEXT,
            f"{PREFIX}.head.*": None,
            **linear({"classifier": "head.out"}),
        },
        base_model_prefix=PREFIX,
    ),
}
