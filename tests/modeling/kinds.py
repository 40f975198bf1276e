"""Small random models with every feature that a config can describe."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from ortolan.modeling import DecoderModel, EncoderDecoderModel, EncoderModel
from ortolan.modeling.config import (
    AlibiPositions,
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    GatedDeltaConfig,
    LearnedPositions,
    LinearRecurrenceConfig,
    Mixer,
    MixtureConfig,
    NoPositions,
    NormConfig,
    Positions,
    RelativeBiasPositions,
    RotaryPositions,
    ShortConvConfig,
    SinusoidalPositions,
    StateSpaceConfig,
    TokenInput,
)

M = TypeVar("M", bound=nn.Module)

WIDTH, VOCAB, CONTEXT = 24, 31, 40

LAYER = NormConfig(kind="layer", eps=1e-3)
RMS = NormConfig(kind="rms", eps=1e-3)

ATTENTION = AttentionConfig(
    num_heads=4, num_kv_heads=4, head_dim=6, scale=0.4, qkv_bias=True, out_bias=True
)

MLP = FeedForwardConfig(kind="mlp", intermediate_size=20, activation="gelu", bias=True)

BLOCK = BlockConfig(mixer=ATTENTION, feed_forward=MLP, norm=LAYER)


def with_attention(**fields: Any) -> BlockConfig:
    return replace(BLOCK, mixer=replace(ATTENTION, **fields))


def with_mlp(**fields: Any) -> BlockConfig:
    return replace(BLOCK, feed_forward=replace(MLP, **fields))


POSITIONS: dict[str, Positions] = {
    "none": NoPositions(),
    "learned": LearnedPositions(),
    "learned-offset": LearnedPositions(offset=3),
    "sinusoidal": SinusoidalPositions(),
    "rotary": RotaryPositions(dim=6, theta=30.0),
    "rotary-partial": RotaryPositions(dim=4, theta=30.0),
    "rotary-interleaved": RotaryPositions(dim=6, theta=30.0, interleaved=True),
    "rotary-interleaved-partial": RotaryPositions(dim=4, theta=30.0, interleaved=True),
    "relative-bias": RelativeBiasPositions(buckets=8, max_distance=11),
    "relative-bias-narrow": RelativeBiasPositions(buckets=4, max_distance=3),
    "alibi": AlibiPositions(),
    "alibi-scaled": AlibiPositions(scale=0.3),
}

BLOCKS: dict[str, BlockConfig] = {
    "pre": BLOCK,
    "post": replace(BLOCK, placement="post"),
    "pre-residual": replace(BLOCK, placement="pre_residual"),
    "parallel": replace(BLOCK, placement="parallel"),
    "parallel-norms": replace(BLOCK, placement="parallel_norms"),
    "rms": replace(BLOCK, norm=RMS, placement="pre_residual"),
    "grouped": with_attention(num_kv_heads=2),
    "multi-query": with_attention(num_kv_heads=1),
    "softcap": with_attention(softcap=0.8),
    "window-of-one": with_attention(sliding_window=1),
    "window-grouped": with_attention(sliding_window=3, num_kv_heads=2),
    "window-softcap": with_attention(sliding_window=4, num_kv_heads=1, softcap=2.0),
    "unbiased": with_attention(qkv_bias=False, out_bias=False),
    "narrow-values": with_attention(value_dim=3),
    "wide-values": with_attention(num_kv_heads=2, value_dim=WIDTH),
    "softcap-values": with_attention(softcap=0.8, value_dim=5),
    "gated": with_mlp(kind="gated", activation="silu"),
    "tanh": with_mlp(activation="tanh"),
    "relu2": with_mlp(activation="relu2"),
    "quick-gelu": with_mlp(activation="quick_gelu"),
    "inner-post": replace(BLOCK, placement="inner_post"),
    "sandwich": replace(BLOCK, placement="sandwich", norm=RMS, residual_scale=0.4),
    "no-attention-norm": replace(BLOCK, attention_norm=False),
    "norm-without-bias": replace(BLOCK, norm=replace(LAYER, bias=False)),
    "norm-without-weight": replace(BLOCK, norm=replace(LAYER, bias=False, scale=False)),
    "rms-without-weight": replace(BLOCK, norm=replace(RMS, scale=False)),
    "clipped": with_attention(clip=0.7),
    "biased-last": with_mlp(bias=False, down_bias=True),
    "gated-unbiased-last": with_mlp(kind="gated", activation="silu", down_bias=False),
    "sinks": with_attention(sinks=True),
    **{
        f"query-key-norm-{name}": with_attention(num_kv_heads=2, query_key_norm=kind, **fields)
        for name, kind, fields in (
            ("head", RMS, {}),
            ("all", RMS, {"norm_over": "all"}),
            ("layer", LAYER, {}),
            ("after", RMS, {"norm_after_rotary": True}),
            ("all-after", RMS, {"norm_over": "all", "norm_after_rotary": True}),
            ("weightless", replace(RMS, scale=False), {"norm_after_rotary": True}),
        )
    },
    "gelu-tanh": with_mlp(activation="gelu_tanh"),
}


def bidirectional(block: BlockConfig) -> BlockConfig:
    """The block with attention to all tokens, for an encoder."""
    return replace(block, mixer=replace(block.attention, causal=False))


LAYERS: dict[str, tuple[BlockConfig, BlockConfig]] = {
    "own-and-none": (
        with_attention(rotary=RotaryPositions(dim=4, theta=9.0)),
        with_attention(rotary=NoPositions()),
    ),
    "own-and-shared": (with_attention(rotary=RotaryPositions(dim=2, theta=50.0)), BLOCK),
}
"""Stacks whose layers differ."""

Blocks = BlockConfig | tuple[BlockConfig, ...]


def layers(block: Blocks) -> tuple[BlockConfig, ...]:
    """Two equal layers, or the tuple of layers itself."""
    return block if isinstance(block, tuple) else (block, block)


def cross_of(block: BlockConfig) -> AttentionConfig:
    """Cross-attention with the sizes of a block's self-attention."""
    return replace(
        block.attention,
        causal=False,
        rotary=None,
        query_key_norm=None,
        clip=None,
        sinks=False,
    )


def decoder_config(positions: Positions, block: Blocks = BLOCK, **fields: Any) -> DecoderConfig:
    blocks = layers(block)
    values: dict[str, Any] = {
        "final_norm": None if blocks[-1].placement == "post" else blocks[-1].norm,
        "tied_head": True,
        "blocks": blocks,
        **fields,
    }
    return DecoderConfig(
        model_type="none",
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        context_length=CONTEXT,
        positions=positions,
        **values,
    )


def encoder_config(positions: Positions, block: Blocks = BLOCK, **fields: Any) -> EncoderConfig:
    blocks = layers(block)
    values: dict[str, Any] = {
        "final_norm": None if blocks[-1].placement == "post" else blocks[-1].norm,
        "input": TokenInput(vocab_size=VOCAB),
        "context_length": CONTEXT,
        "blocks": tuple(map(bidirectional, blocks)),
        **fields,
    }
    return EncoderConfig(model_type="none", hidden_size=WIDTH, positions=positions, **values)


def seq2seq_config(
    positions: Positions, block: Blocks = BLOCK, *, depth: int = 2
) -> EncoderDecoderConfig:
    """An encoder and a decoder with at most `depth` layers each."""
    blocks = layers(block)[:depth]
    crossed = tuple(replace(layer, cross_attention=cross_of(layer)) for layer in blocks)
    return EncoderDecoderConfig(
        model_type="none",
        encoder=encoder_config(positions, blocks),
        decoder=decoder_config(positions, crossed),
        shared_embedding=True,
        decoder_start_token_id=0,
    )


def randomised(module: M, *, seed: int = 0) -> M:
    """The module with random weights, biases and norms, large enough to affect the outputs."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name and name.endswith("weight")
            parameter.copy_(1 + 0.3 * noise if is_norm else 0.5 * noise)
    return module.eval()


def decoder(config: DecoderConfig, *, seed: int = 0) -> DecoderModel:
    return randomised(DecoderModel(config), seed=seed)


def encoder(config: EncoderConfig, *, seed: int = 0) -> EncoderModel:
    return randomised(EncoderModel(config), seed=seed)


def seq2seq(config: EncoderDecoderConfig, *, seed: int = 0) -> EncoderDecoderModel:
    return randomised(EncoderDecoderModel(config), seed=seed)


# --- mixers with a memory of fixed size, and mixtures of experts ---------------------------------

HEADS = StateSpaceConfig(num_heads=4, head_dim=6, state_dim=5, taps=4, groups=2, norm=RMS)
CHANNELS = StateSpaceConfig(num_heads=10, head_dim=1, state_dim=3, taps=4, step_rank=2)
CONV = ShortConvConfig(channels=WIDTH, taps=3)
DELTA = GatedDeltaConfig(num_heads=4, num_key_heads=2, key_dim=8, value_dim=5, taps=4, norm=RMS)
LRU = LinearRecurrenceConfig(channels=12, num_heads=3, taps=4)

MIXERS: dict[str, Mixer] = {
    "short-conv": CONV,
    "short-conv-biased": replace(CONV, bias=True, taps=5, channels=10),
    "gated-delta": DELTA,
    "gated-delta-unshared": replace(DELTA, num_key_heads=4, taps=2),
    "state-space-heads": HEADS,
    "state-space-heads-plain": replace(
        HEADS, groups=1, norm=None, conv_bias=False, bias=True, steps=(0.3, 0.9)
    ),
    "state-space-heads-one-group": replace(HEADS, groups=1),
    "state-space-channels": CHANNELS,
    "state-space-channels-normed": replace(
        CHANNELS, inner_norm=replace(RMS, scale=False), bias=True
    ),
    "linear-recurrence": LRU,
}


def hybrid(mixer: Mixer, *, depth: int = 2) -> DecoderConfig:
    """`depth` times: the mixer alone, the mixer with an MLP, and attention."""
    kinds = (
        BlockConfig(mixer=mixer, feed_forward=None, norm=RMS),
        replace(BLOCK, mixer=mixer, norm=RMS),
        replace(BLOCK, mixer=replace(ATTENTION, head_dim=16, gate=True)),
    )
    return decoder_config(POSITIONS["rotary-partial"], kinds * depth)


FEW = MixtureConfig(experts=6, per_token=2, intermediate_size=16)

CHANGES: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "one": {"per_token": 1},
    "all": {"per_token": 6},
    "not normalised": {"normalised": False},
    "scaled": {"scale": 2.5},
    "scaled, not normalised": {"normalised": False, "scale": 2.5},
    "sigmoid": {"score": "sigmoid"},
    "sigmoid, not normalised": {"score": "sigmoid", "normalised": False, "scale": 0.5},
    "selection bias": {"selection_bias": True},
    "sigmoid, selection bias": {"score": "sigmoid", "selection_bias": True, "normalised": False},
    "groups": {"score": "sigmoid", "selection_bias": True, "groups": 3, "groups_per_token": 2},
    "groups of a softmax": {"groups": 2, "per_token": 3},
    "sparsemixer": {"score": "sparsemixer", "jitter": 0.1, "normalised": False},
    "sparsemixer, normalised": {"score": "sparsemixer", "jitter": 0.4, "scale": 2.0},
    "biases": {"router_bias": True, "expert_bias": True},
    "limit": {"limit": 0.3, "alpha": 1.7, "beta": 1.0, "expert_bias": True},
    "shared": {"shared_size": 24},
    "shared, gated": {"shared_size": 24, "shared_gate": True, "normalised": False},
}
"""Fields that differ from `FEW`, by name."""
