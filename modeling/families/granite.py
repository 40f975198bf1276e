"""Granite 3 (IBM 2024): Llama with factors on embeddings, scores, residuals and logits.

Granite SWA has a window in most layers, a sink in each head, and a base of wavelengths for each
layer.
"""

from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, NoPositions
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.decoder import Rotary, altered, rms
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import (
    FULL,
    SLIDING,
    layers_of,
    read_layer_kinds,
    read_window,
    windows_of,
)
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.weights import Table, Target


def _scaled(hf: ConfigReader, config: DecoderConfig) -> DecoderConfig:
    """With the factors of the config."""
    scaling = hf.get("logits_scaling", float, 1.0)
    if scaling == 0:
        raise ConfigError(f"{hf.name}: logits_scaling must not be 0. Correct it.")
    return altered(
        config,
        attention={"scale": hf.get("attention_multiplier", float, 1.0)},
        block={"residual_scale": hf.get("residual_multiplier", float, 1.0)},
        embedding_scale=hf.get("embedding_multiplier", float, 1.0),
        head_scale=1.0 / scaling,
    )


def granite(hf: ConfigReader) -> DecoderConfig:
    """Granite 3, without experts."""
    return _scaled(hf, llama.LLAMA.read(hf))


def granite_swa(hf: ConfigReader) -> DecoderConfig:
    """Granite SWA, without experts."""
    kinds = read_layer_kinds(hf, [SLIDING if i % 4 else FULL for i in range(layers_of(hf))])
    config = replace(
        llama.LLAMA,
        attention={"sinks": True},
        windows=windows_of(kinds, read_window(hf, 128)),
        norm=rms(1e-5),
        tied=True,
    ).read(hf)
    return _scaled(hf, altered(config, rotaries=_rotaries(hf, config)))


def _rotaries(hf: ConfigReader, config: DecoderConfig) -> list[Rotary] | None:
    """The positions of each layer by its base; none if that is 0."""
    if hf.get("layer_rope_theta", list, None) is None:
        return None
    shared, layers = config.rotaries[0], len(config.blocks)
    bases = hf.numbers("layer_rope_theta")
    if len(bases) != layers:
        raise ConfigError(
            f"{hf.name}: layer_rope_theta must have a base for each of {layers} layers "
            f"(got {len(bases)}). Correct it."
        )
    return [replace(shared, theta=base) if base else NoPositions() for base in bases]


SINKS: Table = {"model.layers.{}.self_attn.sinks": Target("blocks.{}.attention.sinks")}

FAMILIES: dict[str, Family[DecoderConfig]] = {
    "granite": Family(config=granite, weights=llama.WEIGHTS),
    "granite_swa": Family(config=granite_swa, weights={**llama.WEIGHTS, **SINKS}),
}
