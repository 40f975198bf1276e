"""The image encoder of Gemma 3 (Gemma Team 2025): SigLIP, with fewer vectors than patches.

The vectors of squares of patches are averaged, then normalized and projected.
"""

import math
from dataclasses import replace

from ortolan.modeling.config import EncoderConfig, FeatureHead, PatchInput, Projection
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.clip import PREFIX, TOWER_WEIGHTS, read_siglip
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.llava import read_sides
from ortolan.modeling.families.norms import rms
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import gain
from ortolan.modeling.weights import Table, Target

_WEIGHTS: Table = {
    **TOWER_WEIGHTS,
    f"{PREFIX}.head.*": None,  # pooling, which is not read
    "projection_norm.weight": gain("head.norm"),
    "projections.{}.weight": Target("head.projections.{}.weight", transposed=True),
}


def _gemma3(hf: ConfigReader) -> EncoderConfig:
    """The whole encoder, with its last norm."""
    tower, text = read_sides(hf)
    hf.skip("boi_token_index", "eoi_token_index")
    tower.skip("model_type", "projection_dim", "vocab_size", "vision_use_head")
    width = text.size("hidden_size", 2304)
    head = FeatureHead(
        skipped=0,
        projections=(Projection(width=width, bias=False, activation=None),),
        norm=rms(tower.get("layer_norm_eps", float, 1e-6)),
    )
    config = read_siglip(tower, head)
    return replace(
        config,
        model_type=hf.get("model_type", str),
        head=replace(head, average=_square(config, hf)),
    )


def _square(config: EncoderConfig, hf: ConfigReader) -> int:
    """Side of the squares of patches that are averaged."""
    if not isinstance(config.input, PatchInput):
        raise TypeError("expected an encoder of images")
    rows, columns = config.input.grid
    vectors = hf.size("mm_tokens_per_image", 256)
    side = math.isqrt(vectors)
    if rows != columns or side**2 != vectors or rows % side:
        raise ConfigError(
            f"{hf.name}: mm_tokens_per_image must be a square number of equal parts of the image "
            f"(got {vectors} for {rows} by {columns} patches). Correct it."
        )
    return rows // side


FAMILIES: dict[str, Family[EncoderConfig]] = {
    "gemma3": Family(config=_gemma3, weights=_WEIGHTS, base_model_prefix=PREFIX),
}
