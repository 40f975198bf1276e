"""RecurrentGemma (Botev et al. 2024): Griffin's recurrences, and attention to a window.

The embeddings are scaled by the square root of the width, in 16 bits as in the published weights'
code; gains are stored less one; the mlp has half of the channels that are named.
"""

import math
from dataclasses import replace

import torch

from ortolan.modeling.config import (
    DecoderConfig,
    FeedForwardConfig,
    LinearRecurrenceConfig,
    NormConfig,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import llama
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.gpt_like import gpt_block, gpt_like, named
from ortolan.modeling.families.layer_kinds import either, with_mixers
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.rope import read_rotary
from ortolan.modeling.weights import Table, Target

BASE_MODEL_PREFIX = llama.BASE_MODEL_PREFIX

CONTEXT = 8192
"""Tokens of the texts that it was trained with."""

RECURRENT, ATTENTION = "recurrent", "attention"

_LAYER, _BLOCK = "model.layers.{}.", "model.layers.{}.temporal_block."
_OURS = "blocks.{}.linear_recurrence."


def _gain(ours: str) -> Target:
    return Target(f"{ours}.weight", offset=1.0)


WEIGHTS: Table = {
    "model.embed_tokens.weight": Target("embedding.weight"),
    f"{_LAYER}temporal_pre_norm.weight": either(
        "blocks.{}.attention_norm.weight", "blocks.{}.linear_recurrence_norm.weight", offset=1.0
    ),
    f"{_LAYER}channel_pre_norm.weight": _gain("blocks.{}.feed_forward_norm"),
    **{
        f"{_BLOCK}{part}_proj.{kind}": Target(f"blocks.{{}}.attention.qkv.{kind}")
        for kind in ("weight", "bias")
        for part in "qkv"
    },
    **named(_BLOCK, "blocks.{}.attention.", {"o_proj": "out"}),
    **named(
        _BLOCK,
        _OURS,
        {"linear_x": "enter", "linear_y": "gate", "conv_1d": "conv", "linear_out": "out"},
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
    **named(
        f"{_LAYER}mlp_block.",
        "blocks.{}.feed_forward.",
        {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"},
    ),
    "model.final_norm.weight": _gain("final_norm"),
    "lm_head.weight": Target("head.weight"),
}


def config(hf: ConfigReader) -> DecoderConfig:
    """A `RecurrentGemmaConfig` of Hugging Face as a `DecoderConfig`."""
    hf.skip("w_init_variance_scale", "final_w_init_variance_scale", "layers_block_type")
    # Copies of others, under the names that other families have for them.
    hf.skip("layer_types", "head_dim", "_block_types")
    hf.require("embeddings_scale_by_sqrt_dim")
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    norm = NormConfig(kind="rms", eps=hf.get("rms_norm_eps", float, 1e-6))
    activation = hf.get("hidden_activation", str, "gelu_pytorch_tanh")
    hidden = hf.size("intermediate_size")
    block = gpt_block(
        width,
        heads=heads,
        kv_heads=hf.size("num_key_value_heads", heads),
        intermediate_size=max(hidden // 2, 1),
        activation=activation,
        norm=norm,
        # the second name of the same key, which wins where both are given
        window=hf.size("sliding_window", hf.size("attention_window_size", 2048)),
        qkv_bias=hf.get("attention_bias", bool, False),
    )
    mlp = FeedForwardConfig(
        kind="gated",
        intermediate_size=block.dense.intermediate_size,
        activation=block.dense.activation,
        bias=True,
    )
    kinds = _kinds(hf)
    context = hf.size("max_position_embeddings", CONTEXT)
    made = gpt_like(
        hf,
        model_type="recurrent_gemma",
        width=width,
        context_length=context,
        positions=read_rotary(hf, head_dim=width // heads, context_length=context, fraction=0.5),
        blocks=(replace(block, feed_forward=mlp),) * len(kinds),
        embedding_scale=float(torch.tensor(math.sqrt(width), dtype=torch.bfloat16)),
        final_softcap=hf.get("logits_soft_cap", float, 30.0),
    )
    mixer = LinearRecurrenceConfig(
        channels=hf.size("lru_width", width),
        num_heads=heads,
        taps=hf.size("conv1d_width", 4),
        activation=read_activation(activation),
    )
    return with_mixers(made, kinds, {RECURRENT: mixer})


def _kinds(hf: ConfigReader) -> tuple[str, ...]:
    """The kind of each layer: `block_types`, again and again."""
    layers = hf.size("num_hidden_layers", most=MAX_LAYERS)
    pattern = hf.get("block_types", list, [RECURRENT, RECURRENT, ATTENTION])
    if not pattern or not all(kind in (RECURRENT, ATTENTION) for kind in pattern):
        raise ConfigError(
            f"{hf.name}: expected block_types to hold {RECURRENT} or {ATTENTION}, got "
            f"{pattern!r:.80}. This checkpoint cannot be loaded faithfully."
        )
    return tuple(pattern[i % len(pattern)] for i in range(layers))
