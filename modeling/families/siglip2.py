"""The image encoder of SigLIP 2 (Tschannen et al. 2025) that keeps the proportions of images.

SigLIP 2 of a fixed resolution is published as SigLIP.
"""

import math
from dataclasses import replace

from ortolan.modeling.config import EncoderConfig, GridInput, GridPositions, Head
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.classifier import read_classifier
from ortolan.modeling.families.clip import (
    IMPLIED,
    PREFIX,
    SIGLIP2_BOTH,
    pooled_by_attention,
    read_siglip,
    side,
    siglip_weights,
)
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import ConfigReader

TOWER, CLASSIFIER = "Siglip2VisionModel", "Siglip2ForImageClassification"


def _siglip2(hf: ConfigReader) -> EncoderConfig:
    """A classifier, or the images' side of both."""
    architecture = hf.architecture(CLASSIFIER, SIGLIP2_BOTH)
    hf.skip("text_config")
    tower = side(hf, "vision", IMPLIED)
    tower.skip("model_type")
    if architecture == SIGLIP2_BOTH:
        tower.require("vision_use_head")
        config = pooled_by_attention(tower, read_siglip2(tower), normalised=True)
    else:
        tower.skip("vision_use_head")
        config = read_siglip2(tower, read_classifier(hf, pooling="mean"))
    return replace(config, model_type=hf.get("model_type", str))


def _siglip2_tower(hf: ConfigReader) -> EncoderConfig:
    """A tower on its own, with or without its pooling."""
    hf.architecture(TOWER)
    config = read_siglip2(hf)
    if hf.get("vision_use_head", bool, True):
        return pooled_by_attention(hf, config, normalised=False)
    return config


def read_siglip2(tower: ConfigReader, head: Head | None = None, *, merge: int = 1) -> EncoderConfig:
    """The image encoder of SigLIP 2 with a head.

    The config does not bound the patches of an image: here they are those of the table of
    positions, rounded up to whole squares.
    """
    config, count = read_siglip(tower, None), tower.size("num_patches", 256)
    if math.isqrt(count) ** 2 != count:
        raise ConfigError(
            f"{tower.name}: num_patches must be a square number (got {count}). Correct it."
        )
    return replace(
        config,
        input=GridInput(
            patch_size=tower.size("patch_size", 16),
            channels=tower.size("num_channels", 3),
            merge=merge,
        ),
        context_length=-(-count // merge**2) * merge**2,
        positions=GridPositions(side=math.isqrt(count), interpolation="antialiased"),
        head=head,
    )


FAMILIES: dict[str, Family[EncoderConfig]] = {
    "siglip2": Family(config=_siglip2, weights=siglip_weights, base_model_prefix=PREFIX),
    "siglip2_vision_model": Family(
        config=_siglip2_tower, weights=siglip_weights, base_model_prefix=PREFIX
    ),
}
