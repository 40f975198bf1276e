"""The layer of each kind of mixer, and the name that its weights have in a block."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from ortolan.modeling.config import (
    AttentionConfig,
    GatedDeltaConfig,
    LinearRecurrenceConfig,
    Mixer,
    Positions,
    ShortConvConfig,
    StateSpaceConfig,
)
from ortolan.modeling.layers.attention import SelfAttention
from ortolan.modeling.layers.gated_delta import GatedDelta
from ortolan.modeling.layers.linear_recurrence import LinearRecurrence
from ortolan.modeling.layers.short_conv import ShortConv
from ortolan.modeling.layers.state_space import state_space


class _Kind(NamedTuple):
    name: str
    layer: Callable[[Any, int], nn.Module]


_KINDS: Mapping[type[Mixer], _Kind] = {
    GatedDeltaConfig: _Kind("gated_delta", GatedDelta),
    LinearRecurrenceConfig: _Kind("linear_recurrence", LinearRecurrence),
    ShortConvConfig: _Kind("short_conv", ShortConv),
    StateSpaceConfig: _Kind("state_space", state_space),
}


def mixer_name(config: Mixer) -> str:
    """What a mixer is called in its block: `attention`, or its kind."""
    return "attention" if isinstance(config, AttentionConfig) else _KINDS[type(config)].name


def mixer(config: Mixer, width: int, positions: Positions | None) -> nn.Module:
    """The layer of a mixer.

    Args:
        config: of any kind.
        width: of the stream.
        positions: of the stack; some kinds of attention have a table in every layer.
    """
    if isinstance(config, AttentionConfig):
        return SelfAttention(config, width, positions=positions)
    return _KINDS[type(config)].layer(config, width)
