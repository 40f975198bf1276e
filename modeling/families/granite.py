"""Granite 3 (IBM 2024): Llama with factors on embeddings, scores, residuals and logits."""

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.decoder import altered
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.reader import ConfigReader


def granite(hf: ConfigReader) -> DecoderConfig:
    """Granite 3, without experts."""
    scaling = hf.get("logits_scaling", float, 1.0)
    if scaling == 0:
        raise ConfigError(f"{hf.name}: logits_scaling must not be 0. Correct it.")
    return altered(
        llama.LLAMA.read(hf),
        attention={"scale": hf.get("attention_multiplier", float, 1.0)},
        block={"residual_scale": hf.get("residual_multiplier", float, 1.0)},
        embedding_scale=hf.get("embedding_multiplier", float, 1.0),
        head_scale=1.0 / scaling,
    )


FAMILIES: dict[str, Family[DecoderConfig]] = {
    "granite": Family(config=granite, weights=llama.WEIGHTS),
}
