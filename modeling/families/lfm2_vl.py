"""The image encoder of LFM2-VL (Liquid AI 2025): SigLIP 2 for images of any proportions.

Squares of patches are joined before the projection to the language model.
"""

from dataclasses import replace

from ortolan.modeling.config import EncoderConfig, FeatureHead, Projection
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.clip import PREFIX, TOWER_WEIGHTS
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.llava import read_sides
from ortolan.modeling.families.norms import layer_norm
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.siglip2 import read_siglip2
from ortolan.modeling.families.tables import PROJECTION_NORM, PROJECTIONS
from ortolan.modeling.weights import Table

_WEIGHTS: Table = {
    **TOWER_WEIGHTS,
    f"{PREFIX}.head.*": None,  # pooling, which the language model does not read
    **PROJECTION_NORM,
    **PROJECTIONS,
}

OF_PROCESSOR = (
    *("do_image_splitting", "encoder_patch_size", "max_num_patches", "max_pixels_tolerance"),
    *("max_image_tokens", "min_image_tokens", "max_tiles", "min_tiles", "tile_size"),
    *("use_image_special_tokens", "use_thumbnail"),
)
"""Keys that older configs have in addition to the image processor."""


def _lfm2_vl(hf: ConfigReader) -> EncoderConfig:
    """The whole encoder, with its last norm."""
    tower, text = read_sides(hf)
    hf.skip(*OF_PROCESSOR, "tie_embedding", "vision_feature_layer")
    tower.skip("vision_use_head")
    width, bias = text.size("hidden_size", 2560), hf.get("projector_bias", bool, True)
    hidden = Projection(
        width=hf.size("projector_hidden_size", 2560),
        bias=bias,
        activation=read_activation(hf.get("projector_hidden_act", str, "gelu")),
    )
    side = hf.size("downsample_factor", 2)
    head = FeatureHead(
        skipped=0,
        projections=(hidden, Projection(width=width, bias=bias, activation=None)),
        pixel_shuffle=side,
        norm=layer_norm(1e-5) if hf.get("projector_use_layernorm", bool, True) else None,
    )
    return replace(read_siglip2(tower, head, merge=side), model_type=hf.get("model_type", str))


FAMILIES: dict[str, Family[EncoderConfig]] = {
    "lfm2_vl": Family(config=_lfm2_vl, weights=_WEIGHTS, base_model_prefix=PREFIX),
}
