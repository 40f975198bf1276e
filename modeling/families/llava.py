"""The image encoder of LLaVA (Liu et al. 2023), up to the vectors that its language model reads."""

from dataclasses import replace

from ortolan.modeling.config import EncoderConfig, FeatureHead, Projection
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.clip import CLIP_WEIGHTS, PREFIX, read_clip, read_siglip
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import PROJECTIONS, without
from ortolan.modeling.weights import Table

_TOWERS = {"clip_vision_model": read_clip, "siglip_vision_model": read_siglip}

_WEIGHTS: Table = {
    **without(CLIP_WEIGHTS, "post_layernorm", "visual_projection"),
    # Parts after the layer that the language model reads.
    f"{PREFIX}.post_layernorm.weight": None,
    f"{PREFIX}.post_layernorm.bias": None,
    f"{PREFIX}.head.*": None,
    **PROJECTIONS,
}


def read_sides(hf: ConfigReader) -> tuple[ConfigReader, ConfigReader]:
    """The configs of the encoder and of the language model."""
    # Read with the language model.
    hf.skip("image_token_index", "image_token_id")
    hf.skip("architectures", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
    tower, text = hf.nested("vision_config"), hf.get("text_config", dict)
    if tower is None:
        raise ConfigError(f"{hf.name}: expected vision_config, got nothing. Correct it.")
    return tower, ConfigReader(text, f"{hf.name}: text_config")


def _llava(hf: ConfigReader) -> EncoderConfig:
    """The encoder of images, whose layers after the one that is read are left out."""
    tower, text = read_sides(hf)
    hf.skip("image_seq_length")  # the size that the image has anyway
    tower.skip("projection_dim", "vocab_size", "vision_use_head")
    bias = hf.get("multimodal_projector_bias", bool, True)
    width = text.size("hidden_size", 4096)
    activation = read_activation(hf.get("projector_hidden_act", str, "gelu"))
    strategy = hf.get("vision_feature_select_strategy", str, "default")
    if strategy not in ("default", "full"):
        raise ConfigError(
            f"{hf.name}: vision_feature_select_strategy must be default or full (got "
            f"{strategy!r:.40}). Correct it."
        )
    head = FeatureHead(
        skipped=int(strategy == "default"),
        projections=(
            Projection(width=width, bias=bias, activation=activation),
            Projection(width=width, bias=bias, activation=None),
        ),
    )
    config = _TOWERS[tower.get("model_type", str)](tower, head)
    layers, read = len(config.blocks), hf.get("vision_feature_layer", int, -2)
    used = read if read >= 0 else layers + 1 + read
    return replace(config, model_type="llava", blocks=config.blocks[:used], final_norm=None)


FAMILIES: dict[str, Family[EncoderConfig]] = {
    "llava": Family(config=_llava, weights=_WEIGHTS, base_model_prefix=PREFIX),
}
