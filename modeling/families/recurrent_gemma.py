"""RecurrentGemma (Botev et al. 2024): Griffin's recurrences, and attention to a window.

The embeddings are scaled by the square root of the width, in 16 bits as in the original code;
norms are published less one; the MLP has half of the published channels.
"""

import math
from dataclasses import replace

import torch

from ortolan.modeling.config import DecoderConfig, LinearRecurrenceConfig
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.decoder import DecoderFormat, Keys
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import layers_of, with_mixers
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.tables import either, gain, linear
from ortolan.modeling.weights import Table, Target

CONTEXT = 8192
"""Tokens of the sequences that it was trained with."""

RECURRENT, ATTENTION = "recurrent", "attention"

_LAYER, _BLOCK = "model.layers.{}.", "model.layers.{}.temporal_block."
_OURS = "blocks.{}.linear_recurrence."

_WEIGHTS: Table = {
    "model.embed_tokens.weight": Target("embedding.weight"),
    f"{_LAYER}temporal_pre_norm.weight": either(
        "blocks.{}.attention_norm.weight", "blocks.{}.linear_recurrence_norm.weight", offset=1.0
    ),
    f"{_LAYER}channel_pre_norm.weight": gain("blocks.{}.feed_forward_norm"),
    **linear(
        {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "o_proj": "out"},
        _BLOCK,
        "blocks.{}.attention.",
    ),
    **linear(
        {"linear_x": "enter", "linear_y": "gate", "conv_1d": "conv", "linear_out": "out"},
        _BLOCK,
        _OURS,
    ),
    f"{_BLOCK}rg_lru.recurrent_param": Target(f"{_OURS}decay"),
    **{
        f"{_BLOCK}rg_lru.{theirs}_{kind}": Target(f"{_OURS}{ours}.{kind}")
        for theirs, ours in {
            "input_gate": "input_gate",
            "recurrent_gate": "recurrence_gate",
        }.items()
        for kind in ("weight", "bias")
    },
    **linear(
        {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"},
        f"{_LAYER}mlp_block.",
        "blocks.{}.feed_forward.",
    ),
    "model.final_norm.weight": gain("final_norm"),
    "lm_head.weight": Target("head.weight"),
}


def _config(hf: ConfigReader) -> DecoderConfig:
    hf.skip("w_init_variance_scale", "final_w_init_variance_scale", "layers_block_type")
    # Copies of others, under the names that other families have for them.
    hf.skip("layer_types", "head_dim", "_block_types")
    hf.require("embeddings_scale_by_sqrt_dim")
    kinds = _kinds(hf)
    # The second name of the same key, which wins where both are present.
    window = hf.size("sliding_window", hf.size("attention_window_size", 2048))
    config = DecoderFormat(
        keys=Keys(head_dim=None, activation="hidden_activation"),
        qkv_bias="attention_bias",
        out_bias=True,
        mlp_bias=True,
        windows=(window,) * len(kinds),
        activation="gelu_pytorch_tanh",
        hidden=max(hf.size("intermediate_size") // 2, 1),
        context=CONTEXT,
        fraction=0.5,
        tied=True,
        decoder={"final_softcap": hf.get("logits_soft_cap", float, 30.0)},
    ).read(hf)
    scale = float(torch.tensor(math.sqrt(config.hidden_size), dtype=torch.bfloat16))
    mixer = LinearRecurrenceConfig(
        channels=hf.size("lru_width", config.hidden_size),
        num_heads=config.blocks[0].attention.num_heads,
        taps=hf.size("conv1d_width", 4),
        activation=read_activation(hf.get("hidden_activation", str, "gelu_pytorch_tanh")),
    )
    return with_mixers(replace(config, embedding_scale=scale), kinds, {RECURRENT: mixer})


def _kinds(hf: ConfigReader) -> tuple[str, ...]:
    """The kind of each layer: `block_types`, repeated."""
    pattern = hf.get("block_types", list, [RECURRENT, RECURRENT, ATTENTION])
    if not pattern or not all(kind in (RECURRENT, ATTENTION) for kind in pattern):
        raise ConfigError(
            f"{hf.name}: block_types must hold {RECURRENT} or {ATTENTION} (got {pattern!r:.80}). "
            "This checkpoint cannot be loaded faithfully."
        )
    return tuple(pattern[i % len(pattern)] for i in range(layers_of(hf)))


FAMILIES: dict[str, Family[DecoderConfig]] = {
    "recurrent_gemma": Family(config=_config, weights=_WEIGHTS)
}
