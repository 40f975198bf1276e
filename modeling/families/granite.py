"""Granite 3 (IBM 2024) and its kin: Llama with factors on embeddings, scores, residuals and logits.

Granite SWA sees a window in most layers, has a sink in each head, and a base for each layer;
HyperCLOVA X norms what leaves a sublayer, too, and multiplies the logits where Granite divides.
"""

from dataclasses import replace
from typing import Any

from ortolan.modeling.config import DecoderConfig, NoPositions, RotaryPositions
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.layer_kinds import FULL, SLIDING, read_layer_kinds, windows_of
from ortolan.modeling.families.llama import LlamaFamily
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.weights import Target


def _scaled(hf: ConfigReader, made: DecoderConfig, *, head_scale: float) -> DecoderConfig:
    """With the factors of the config."""
    scale = made.blocks[0].attention.scale
    return llama.altered(
        made,
        attention={"scale": hf.get("attention_multiplier", float, scale)},
        block={"residual_scale": hf.get("residual_multiplier", float, 1.0)},
        embedding_scale=hf.get("embedding_multiplier", float, 1.0),
        head_scale=head_scale,
    )


def _divisor(hf: ConfigReader) -> float:
    scaling = hf.get("logits_scaling", float, 1.0)
    if scaling == 0:
        raise ConfigError(f"{hf.name}: expected logits_scaling other than 0, got 0. Correct it.")
    return 1.0 / scaling


def _llama(hf: ConfigReader, model_type: str, **fields: Any) -> DecoderConfig:
    bias = hf.get("attention_bias", bool, False)
    mlp_bias = hf.get("mlp_bias", bool, False)
    return llama.llama_like(
        hf, model_type=model_type, qkv_bias=bias, out_bias=bias, mlp_bias=mlp_bias, **fields
    )


def _granite(hf: ConfigReader) -> DecoderConfig:
    made = llama.altered(_llama(hf, "granite"), attention={"scale": 1.0})
    return _scaled(hf, made, head_scale=_divisor(hf))


def _granite_swa(hf: ConfigReader) -> DecoderConfig:
    window = hf.size("sliding_window", None) if "sliding_window" in hf else 128
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    kinds = read_layer_kinds(hf, [SLIDING if i % 4 else FULL for i in range(layers)])
    made = _llama(hf, "granite_swa", windows=windows_of(kinds, window), eps=1e-5, tied=True)
    made = llama.altered(
        made, attention={"scale": 1.0, "sinks": True}, rotaries=_rotaries(hf, made)
    )
    return _scaled(hf, made, head_scale=_divisor(hf))


def _rotaries(
    hf: ConfigReader, made: DecoderConfig
) -> list[RotaryPositions | NoPositions | None] | None:
    """The positions of each layer by its base; 0 for none."""
    if hf.get("layer_rope_theta", list, None) is None:
        return None
    shared = made.rotaries[0]
    bases = hf.numbers("layer_rope_theta")
    if len(bases) != len(made.blocks):
        raise ConfigError(
            f"{hf.name}: expected layer_rope_theta to have a base for each of {len(made.blocks)} "
            f"layers, got {len(bases)}. Correct it."
        )
    return [replace(shared, theta=base) if base else NoPositions() for base in bases]


def _hyperclovax(hf: ConfigReader) -> DecoderConfig:
    made = _llama(hf, "hyperclovax")
    if hf.get("use_post_norm", bool, True):
        made = llama.altered(made, block={"placement": "sandwich"})
    return _scaled(hf, made, head_scale=hf.get("logits_scaling", float, 1.0))


_SINKS = {"model.layers.{}.self_attn.sinks": Target("blocks.{}.attention.sinks")}

_POST_NORMS = {
    "model.layers.{}.post_norm1.weight": Target("blocks.{}.attention_post_norm.weight"),
    "model.layers.{}.post_norm2.weight": Target("blocks.{}.feed_forward_post_norm.weight"),
}

GRANITE = LlamaFamily(config=_granite, WEIGHTS=llama.WEIGHTS)
GRANITE_SWA = LlamaFamily(config=_granite_swa, WEIGHTS={**llama.WEIGHTS, **_SINKS})
HYPERCLOVAX = LlamaFamily(config=_hyperclovax, WEIGHTS={**llama.WEIGHTS, **_POST_NORMS})
