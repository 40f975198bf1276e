"""The image encoder of InternVL (Chen et al. 2024), with scaled layers.

Squares of patches are joined and normalized before the projection to the language model.
"""

from dataclasses import replace

from ortolan.modeling.config import (
    EncoderConfig,
    FeatureHead,
    NormConfig,
    PatchInput,
    Projection,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.clip import PREFIX
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.llava import read_sides
from ortolan.modeling.families.norms import layer_norm, rms
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import (
    DOWN,
    NORM_1,
    NORM_2,
    OUT,
    PROJECTION_NORM,
    PROJECTIONS,
    UP,
    layer,
    linear,
    qkv,
)
from ortolan.modeling.families.vit import read_vision
from ortolan.modeling.weights import Entry, Target

NORMS = {"layer_norm": layer_norm, "rms_norm": rms}

_LAYER = f"{PREFIX}.encoder.layer.{{}}."


def _weights(config: EncoderConfig) -> dict[str, Entry]:
    """The weights of an encoder, whose last norm may be there without being read."""
    final = linear({f"{PREFIX}.layernorm": "final_norm"})
    return {
        f"{PREFIX}.embeddings.cls_token": Target("embedding.class_token", leading=2),
        f"{PREFIX}.embeddings.mask_token": None,  # replaces patches in pre-training
        f"{PREFIX}.embeddings.position_embeddings": Target("position_embedding.weight", leading=1),
        **linear({f"{PREFIX}.embeddings.patch_embeddings.projection": "embedding.projection"}),
        **layer(
            _LAYER,
            {
                **qkv("attention.{}_proj"),
                "attention.q_norm": "attention.query_norm",
                "attention.k_norm": "attention.key_norm",
                "attention.projection_layer": OUT,
                "layernorm_before": NORM_1,
                "layernorm_after": NORM_2,
                "mlp.fc1": UP,
                "mlp.fc2": DOWN,
            },
        ),
        f"{_LAYER}lambda_1": Target("blocks.{}.attention_scale"),
        f"{_LAYER}lambda_2": Target("blocks.{}.feed_forward_scale"),
        **(dict.fromkeys(final) if config.final_norm is None else final),
        **PROJECTION_NORM,
        **PROJECTIONS,
    }


def _internvl(hf: ConfigReader) -> EncoderConfig:
    """The layers up to the one that is read; its last norm, if any, follows the last layer."""
    tower, text = read_sides(hf)
    hf.skip("image_seq_length")  # the size that the image has anyway
    strategy = hf.get("vision_feature_select_strategy", str, "default")
    if strategy != "default":
        raise ConfigError(
            f"{hf.name}: vision_feature_select_strategy must be default, without the class token "
            f"(got {strategy!r:.40}). Correct it."
        )
    width = text.size("hidden_size", 4096)
    activation = read_activation(hf.get("projector_hidden_act", str, "gelu"))
    head = FeatureHead(
        skipped=1,
        projections=(
            Projection(width=width, activation=activation),
            Projection(width=width, activation=None),
        ),
        pixel_shuffle=_side(hf),
        norm=layer_norm(1e-5),
    )
    config = _read_tower(tower, head)
    layers, read = len(config.blocks), hf.get("vision_feature_layer", int, -1)
    used = read if read >= 0 else layers + 1 + read
    return replace(
        config,
        model_type=hf.get("model_type", str),
        blocks=config.blocks[:used],
        final_norm=config.final_norm if read == -1 else None,
    )


def _side(hf: ConfigReader) -> int:
    """Side of the squares of patches that are joined."""
    ratio = hf.get("downsample_ratio", float, 0.5)
    side = round(1 / ratio) if 0 < ratio <= 1 else 0
    if not side or 1 / side != ratio:
        raise ConfigError(
            f"{hf.name}: downsample_ratio must be 1, 1/2, 1/3 or so on (got {ratio}). Correct it."
        )
    return side


def _read_tower(tower: ConfigReader, head: FeatureHead) -> EncoderConfig:
    """The encoder with a head."""
    tower.skip("projection_dropout", "layer_scale_init_value", "use_mask_token")
    tower.require("use_absolute_position_embeddings")
    config = read_vision(
        tower, head=head, eps=1e-6, hidden=tower.size("intermediate_size", 4096), patch=14
    )
    if not isinstance(config.input, PatchInput) or len(set(config.input.grid)) > 1:
        raise ConfigError(
            f"{tower.name}: an image must have as many rows of patches as columns (got an "
            f"image_size of {tower.get('image_size', object)}). Correct it."
        )
    block = config.blocks[0]
    attention = replace(
        block.attention,
        qkv_bias=tower.get("attention_bias", bool, False),
        query_key_norm=rms(1e-6) if tower.get("use_qk_norm", bool, False) else None,
        norm_over="all",
    )
    block = replace(block, mixer=attention, norm=_norm(tower), layer_scale=True)
    pooled = tower.get("use_mean_pooling", bool, True)
    return replace(
        config,
        blocks=(block,) * len(config.blocks),
        final_norm=None if pooled else config.final_norm,
    )


def _norm(tower: ConfigReader) -> NormConfig:
    """The norms of the layers."""
    kind = tower.get("norm_type", str, "layer_norm")
    if kind not in NORMS:
        raise ConfigError(
            f"{tower.name}: norm_type must be one of {', '.join(NORMS)} (got {kind!r:.40}). "
            "Correct it."
        )
    return NORMS[kind](tower.get("layer_norm_eps", float, 1e-6))


FAMILIES: dict[str, Family[EncoderConfig]] = {
    "internvl": Family(config=_internvl, weights=_weights, base_model_prefix=PREFIX),
}
