"""Gemma 1 to 3 (Gemma Team 2024, 2024, 2025) and VaultGemma: gains stored less one.

The embeddings are scaled by the square root of the width. Gemma 2 caps scores and logits, norms
what leaves a sublayer too, and sees a window in every other layer; VaultGemma is without these
norms. Gemma 3 norms queries and keys instead of capping, and has a base for each kind of layer.
"""

import math
from collections.abc import Sequence
from typing import Any

from ortolan.modeling.config import DecoderConfig, EncoderConfig, RotaryPositions, as_encoder
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.layer_kinds import (
    FULL,
    SLIDING,
    every,
    read_layer_kinds,
    windows_of,
)
from ortolan.modeling.families.llama import LlamaFamily
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.rope import read_rotaries
from ortolan.modeling.weights import Target

_NORM = "model.layers.{{}}.{}.weight"


def _gain(ours: str) -> Target:
    return Target(f"{ours}.weight", offset=1.0)


_GEMMA = llama.WEIGHTS | {
    "model.norm.weight": _gain("final_norm"),
    _NORM.format("input_layernorm"): _gain("blocks.{}.attention_norm"),
    _NORM.format("post_attention_layernorm"): _gain("blocks.{}.feed_forward_norm"),
}

_VAULT = _GEMMA | {
    _NORM.format("pre_feedforward_layernorm"): _gain("blocks.{}.feed_forward_norm"),
}
del _VAULT[_NORM.format("post_attention_layernorm")]

_GEMMA2 = _VAULT | {
    _NORM.format("post_attention_layernorm"): _gain("blocks.{}.attention_post_norm"),
    _NORM.format("post_feedforward_layernorm"): _gain("blocks.{}.feed_forward_post_norm"),
}

_GEMMA3 = _GEMMA2 | {
    _NORM.format("self_attn.q_norm"): _gain("blocks.{}.attention.query_norm"),
    _NORM.format("self_attn.k_norm"): _gain("blocks.{}.attention.key_norm"),
}


def _gemma_like(
    hf: ConfigReader,
    *,
    model_type: str,
    windows: Sequence[int | None] | None = None,
    positions: RotaryPositions | None = None,
    activation: str,
) -> DecoderConfig:
    bias = hf.get("attention_bias", bool, False)
    made = llama.llama_like(
        hf,
        model_type=model_type,
        qkv_bias=bias,
        out_bias=bias,
        windows=windows,
        positions=positions,
        head_dim=256,
        tied=True,
    )
    return llama.altered(
        made,
        feed_forward={"activation": read_activation(activation)},
        embedding_scale=math.sqrt(made.hidden_size),
    )


def _activation(hf: ConfigReader) -> str:
    """The activation of Gemma 2 and 3, whose configs may have another key, which is not read."""
    return hf.get("hidden_activation", str, "gelu_pytorch_tanh")


def _gemma(hf: ConfigReader) -> DecoderConfig:
    hf.refuse("use_bidirectional_attention")
    # The key of later configs is not read.
    hf.skip("hidden_activation")
    activation = hf.get("hidden_act", str, "gelu_pytorch_tanh")
    # Old configs say gelu and mean its approximation.
    activation = "gelu_pytorch_tanh" if activation == "gelu" else activation
    return _gemma_like(hf, model_type="gemma", activation=activation)


def _gemma2_like(hf: ConfigReader, model_type: str, **block: Any) -> DecoderConfig:
    hf.refuse("use_bidirectional_attention")
    window = hf.size("sliding_window", None) if "sliding_window" in hf else 4096
    kinds = read_layer_kinds(hf, every(hf, 2))
    made = _gemma_like(
        hf,
        model_type=model_type,
        windows=windows_of(kinds, window),
        activation=_activation(hf),
    )
    made = llama.altered(
        made, attention={"softcap": _cap(hf, "attn_logit_softcapping", 50.0)}, block=block
    )
    return _scored(hf, made, final_softcap=30.0)


def _gemma2(hf: ConfigReader) -> DecoderConfig:
    return _gemma2_like(hf, "gemma2", placement="sandwich")


def _vaultgemma(hf: ConfigReader) -> DecoderConfig:
    return _gemma2_like(hf, "vaultgemma")


def _gemma3(hf: ConfigReader) -> DecoderConfig | EncoderConfig:
    """A language model, or EmbeddingGemma (Vera et al. 2025), which sees both sides."""
    # A copy of the other key, which transformers writes.
    hf.skip("_sliding_window_pattern")
    window = hf.size("sliding_window", None) if "sliding_window" in hf else 4096
    sees_both_sides = hf.get("use_bidirectional_attention", bool, False)
    if sees_both_sides and window is not None:
        window = window // 2 + 1  # half of it lies on each side
    kinds = read_layer_kinds(hf, every(hf, hf.size("sliding_window_pattern", 6)))
    rotaries = read_rotaries(
        hf,
        {FULL: ("rope_theta", 1_000_000.0), SLIDING: ("rope_local_base_freq", 10_000.0)},
        head_dim=hf.size("head_dim", 256),
        context_length=hf.size("max_position_embeddings", 131_072),
    )
    made = _gemma_like(
        hf,
        model_type="gemma3_text",
        windows=windows_of(kinds, window),
        positions=rotaries[FULL],
        activation=_activation(hf),
    )
    made = llama.altered(
        made,
        attention={"query_key_norm": made.final_norm},
        block={"placement": "sandwich"},
        rotaries=[None if kind == FULL else rotaries[SLIDING] for kind in kinds],
    )
    # transformers ignores a cap of the scores here: one that is given stays unread, an error.
    scored = _scored(hf, made, final_softcap=None)
    return as_encoder(scored, causal=False) if sees_both_sides else scored


def _scored(hf: ConfigReader, made: DecoderConfig, *, final_softcap: float | None) -> DecoderConfig:
    """With the scale of the scores and the cap of the logits."""
    if not (scalar := hf.get("query_pre_attn_scalar", float, 256.0)) > 0:
        raise ConfigError(
            f"{hf.name}: expected query_pre_attn_scalar above 0, got {scalar}. Correct it."
        )
    return llama.altered(
        made,
        attention={"scale": scalar**-0.5},
        final_softcap=_cap(hf, "final_logit_softcapping", final_softcap),
    )


def _cap(hf: ConfigReader, key: str, default: float | None) -> float | None:
    """A cap; null means none, and where the key is absent transformers takes `default`."""
    return hf.get(key, float, None) if key in hf else default


GEMMA = LlamaFamily(config=_gemma, WEIGHTS=_GEMMA)
GEMMA2 = LlamaFamily(config=_gemma2, WEIGHTS=_GEMMA2)
VAULTGEMMA = LlamaFamily(config=_vaultgemma, WEIGHTS=_VAULT)
GEMMA3_TEXT = LlamaFamily(config=_gemma3, WEIGHTS=_GEMMA3)
