"""Gemma 1 to 3 (Gemma Team 2024, 2024, 2025): norms are published less one.

The embeddings are scaled by the square root of the width. Gemma 2 caps scores and logits,
normalises the output of a sublayer as well as its input, and has a window in every other layer.
Gemma 3 normalises queries and keys instead of capping scores, and has a base of wavelengths for
each kind of layer.
"""

import math
from dataclasses import replace

from ortolan.modeling.config import DecoderConfig, EncoderConfig, as_encoder
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.decoder import DecoderFormat, altered
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import (
    FULL,
    SLIDING,
    every,
    read_layer_kinds,
    read_window,
    windows_of,
)
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.rope import read_rotaries
from ortolan.modeling.families.tables import gain
from ortolan.modeling.weights import Table

GELU_TANH = "gelu_pytorch_tanh"

_LAYER = "model.layers.{}."

_GEMMA: Table = {
    **llama.WEIGHTS,
    "model.norm.weight": gain("final_norm"),
    f"{_LAYER}input_layernorm.weight": gain("blocks.{}.attention_norm"),
    f"{_LAYER}post_attention_layernorm.weight": gain("blocks.{}.feed_forward_norm"),
}

_GEMMA2: Table = {
    **_GEMMA,
    f"{_LAYER}post_attention_layernorm.weight": gain("blocks.{}.attention_post_norm"),
    f"{_LAYER}pre_feedforward_layernorm.weight": gain("blocks.{}.feed_forward_norm"),
    f"{_LAYER}post_feedforward_layernorm.weight": gain("blocks.{}.feed_forward_post_norm"),
}

_GEMMA3: Table = {
    **_GEMMA2,
    f"{_LAYER}self_attn.q_norm.weight": gain("blocks.{}.attention.query_norm"),
    f"{_LAYER}self_attn.k_norm.weight": gain("blocks.{}.attention.key_norm"),
}

_FORMAT = DecoderFormat(
    bias="attention_bias",
    head_dim=256,
    tied=True,
)


def _read(hf: ConfigReader, form: DecoderFormat, activation: str | None = None) -> DecoderConfig:
    if activation is None:
        # Configs of Gemma 2 and 3 may have hidden_act as well, which does not count.
        activation = hf.get("hidden_activation", str, GELU_TANH)
    config = form.read(hf)
    return altered(
        config,
        feed_forward={"activation": read_activation(activation)},
        embedding_scale=math.sqrt(config.hidden_size),
    )


def _gemma(hf: ConfigReader) -> DecoderConfig:
    hf.refuse("use_bidirectional_attention")
    # Here the key of later configs is the one that is not read.
    hf.skip("hidden_activation")
    activation = hf.get("hidden_act", str, GELU_TANH)
    # Old configs say gelu and mean its approximation.
    return _read(hf, _FORMAT, GELU_TANH if activation == "gelu" else activation)


def _gemma2(hf: ConfigReader) -> DecoderConfig:
    hf.refuse("use_bidirectional_attention")
    kinds = read_layer_kinds(hf, every(hf, 2))
    cap = hf.nullable("attn_logit_softcapping", float, 50.0)
    form = replace(
        _FORMAT,
        attention={"softcap": cap, "scale": _scale(hf)},
        windows=windows_of(kinds, read_window(hf, 4096)),
        placement="sandwich",
        decoder={"final_softcap": hf.nullable("final_logit_softcapping", float, 30.0)},
    )
    return _read(hf, form)


def _gemma3(hf: ConfigReader) -> DecoderConfig | EncoderConfig:
    """A language model, or EmbeddingGemma (Vera et al. 2025), which attends to both sides."""
    # A copy of the other key, which transformers writes.
    hf.skip("_sliding_window_pattern")
    window = read_window(hf, 4096)
    bidirectional = hf.get("use_bidirectional_attention", bool, False)
    if bidirectional and window is not None:
        window = window // 2 + 1  # half of it lies on each side
    kinds = read_layer_kinds(hf, every(hf, hf.size("sliding_window_pattern", 6)))
    rotaries = read_rotaries(
        hf,
        {FULL: ("rope_theta", 1_000_000.0), SLIDING: ("rope_local_base_freq", 10_000.0)},
        head_dim=hf.size("head_dim", 256),
        context_length=hf.size("max_position_embeddings", 131_072),
    )
    form = replace(
        _FORMAT,
        query_key_norm=True,
        # transformers ignores a cap of the scores here, so that its key is left unread: an error.
        attention={"scale": _scale(hf)},
        windows=windows_of(kinds, window),
        placement="sandwich",
        positions=rotaries[FULL],
        rotaries=[None if kind == FULL else rotaries[SLIDING] for kind in kinds],
        decoder={"final_softcap": hf.nullable("final_logit_softcapping", float, None)},
    )
    config = _read(hf, form)
    return as_encoder(config, causal=False) if bidirectional else config


def _scale(hf: ConfigReader) -> float:
    """The factor on the scores."""
    if not (scalar := hf.get("query_pre_attn_scalar", float, 256.0)) > 0:
        raise ConfigError(
            f"{hf.name}: query_pre_attn_scalar must be above 0 (got {scalar}). Correct it."
        )
    factor: float = scalar**-0.5
    return factor


FAMILIES: dict[str, Family[DecoderConfig] | Family[DecoderConfig | EncoderConfig]] = {
    "gemma": Family(config=_gemma, weights=_GEMMA),
    "gemma2": Family(config=_gemma2, weights=_GEMMA2),
    "gemma3_text": Family(config=_gemma3, weights=_GEMMA3),
}
