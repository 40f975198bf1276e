"""The image encoder of Idefics3 (Laurençon et al. 2024) and SmolVLM (Marafioti et al. 2025).

Squares of patches are joined before the projection, so an image takes fewer vectors.
"""

from dataclasses import replace

from ortolan.modeling.config import EncoderConfig, FeatureHead, Projection
from ortolan.modeling.families.clip import PREFIX, TOWER_WEIGHTS, read_siglip
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.llava import read_sides
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import PROJECTIONS
from ortolan.modeling.weights import Table

_WEIGHTS: Table = {**TOWER_WEIGHTS, **PROJECTIONS}


def _idefics3(hf: ConfigReader) -> EncoderConfig:
    """The whole encoder, with its last norm."""
    tower, text = read_sides(hf)
    hf.skip("vocab_size", "_pad_token_id")
    # Sizes of the image processor, and a choice between classes that compute the same.
    tower.skip("model_type", "size", "max_image_size", "use_base_siglip")
    width = text.size("hidden_size", 4096)
    head = FeatureHead(
        skipped=0,
        projections=(Projection(width=width, bias=False, activation=None),),
        pixel_shuffle=hf.size("scale_factor", 2),
    )
    return replace(read_siglip(tower, head), model_type=hf.get("model_type", str))


FAMILIES: dict[str, Family[EncoderConfig]] = {
    name: Family(config=_idefics3, weights=_WEIGHTS, base_model_prefix=PREFIX)
    for name in ("idefics3", "smolvlm")
}
