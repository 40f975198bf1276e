"""Configs of mixers with a memory of fixed size that together use every option."""

from dataclasses import replace

from tests.modeling.kinds import ATTENTION, BLOCK, POSITIONS, RMS, WIDTH, decoder_config

from ortolan.modeling.config import (
    BlockConfig,
    DecoderConfig,
    GatedDeltaConfig,
    LinearRecurrenceConfig,
    Mixer,
    ShortConvConfig,
    StateSpaceConfig,
)

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
