"""One layer of a transformer: a mixer, optional cross-attention, and a feed-forward layer.

Shape letters: B batch, S new tokens, N selected tokens, T tokens of the source, E model width.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ortolan.modeling.config import (
    AttentionConfig,
    BlockConfig,
    GatedDeltaConfig,
    LinearRecurrenceConfig,
    Mixer,
    MixtureConfig,
    Positions,
    ShortConvConfig,
    StateSpaceConfig,
)
from ortolan.modeling.layers.attention import CrossAttention, SelfAttention
from ortolan.modeling.layers.cache import LayerCache, Memory, Pick, StepLengths, same
from ortolan.modeling.layers.convolution import ShortConv
from ortolan.modeling.layers.feed_forward import FeedForward
from ortolan.modeling.layers.gated_delta import GatedDelta
from ortolan.modeling.layers.linear_recurrence import LinearRecurrence
from ortolan.modeling.layers.mixture import Mixture
from ortolan.modeling.layers.nodes import Rotary
from ortolan.modeling.layers.norms import norm
from ortolan.modeling.layers.scores import Relative
from ortolan.modeling.layers.state_space import state_space


class Block(nn.Module):
    """A mixer and an optional feed-forward layer, each with a norm and a residual connection.

    The mixer and its norms are named after its kind, such as `attention` and `attention_norm`.
    """

    def __init__(
        self, config: BlockConfig, width: int, *, positions: Positions | None = None
    ) -> None:
        super().__init__()
        self.placement = config.placement
        self.parallel = config.parallel
        self.residual_scale = config.residual_scale
        self.layer_scale = config.layer_scale

        def normalise(*, when: bool = True) -> nn.Module:
            return norm(config.norm if when else None, width)

        both_sides = config.placement == "sandwich"
        self.mixing = mixer_name(config.mixer)
        self.add_module(f"{self.mixing}_norm", normalise(when=config.attention_norm))
        self.add_module(self.mixing, mixer(config.mixer, width, positions))
        self.add_module(f"{self.mixing}_post_norm", normalise(when=both_sides))
        self.cross_attention: CrossAttention | None = None
        if config.cross_attention is not None:
            self.cross_attention_norm = normalise()
            self.cross_attention = CrossAttention(config.cross_attention, width)
            self.cross_attention_post_norm = normalise(when=both_sides)
        if config.layer_scale:
            for name in (self.mixing, "feed_forward"):
                self.register_parameter(f"{name}_scale", nn.Parameter(torch.ones(width)))
        self.feed_forward: nn.Module | None = None
        if config.feed_forward is None:
            return
        self.feed_forward_norm = normalise(when=config.placement != "parallel")
        self.feed_forward = (
            Mixture(config.feed_forward, width)
            if isinstance(config.feed_forward, MixtureConfig)
            else FeedForward(config.feed_forward, width)
        )
        self.feed_forward_post_norm = normalise(when=both_sides)

    def forward(
        self,
        x_BSE: Tensor,
        rotary: Rotary | None,
        relative: Relative | None = None,
        *,
        lengths: Tensor | None = None,
        past: Memory | None = None,
        step: StepLengths | None = None,
        pick: Pick = same,
        source: LayerCache | None = None,
        source_lengths: Tensor | None = None,
        added: Tensor | None = None,
    ) -> tuple[Tensor, Memory | None]:
        """Compute the block for whole sequences, or continue from `past`.

        All S tokens enter the mixer. `pick` maps `(B, S, ...)` to `(B, N, ...)`, and the rest of
        the block is computed for those N tokens only: `(B, S, E)` to `(B, N, E)`.

        Args:
            x_BSE: residual stream.
            rotary: rotary tables of the stack, if any.
            relative: relative positions of the stack, if any.
            lengths: int `(B,)`; valid tokens per row; None if all are valid.
            past: state of the mixer; None for whole sequences.
            step: lengths after this step.
            pick: selects tokens.
            source: keys and values of a source, for a block with cross-attention.
            source_lengths: int `(B,)`; valid tokens per source; None if all are valid.
            added: vectors `(B, S, E)` to add to the output.

        Returns:
            The output, and the updated state of the mixer.
        """
        present: Memory | None = None

        def mix(x: Tensor) -> Tensor:
            nonlocal present
            out: Tensor
            out, present = self._mixer(
                x, rotary, relative, lengths, past=past, step=step, pick=pick
            )
            return out

        picked = None if added is None else pick(added)
        if self.parallel:
            return _sum(self._both(x_BSE, mix, pick), picked), present
        x_BNE = self._residual(x_BSE, self.mixing, mix, pick)
        return _sum(self._rest(x_BNE, source, source_lengths), picked), present

    @property
    def _mixer(self) -> Any:
        """The mixer of tokens, called like `FixedMemoryMixer`."""
        return self.get_submodule(self.mixing)

    def _rest(self, x_BSE: Tensor, source: LayerCache | None, lengths: Tensor | None) -> Tensor:
        """Compute what follows the mixer."""
        cross = self.cross_attention
        if (cross is None) != (source is None):
            raise TypeError("a block needs a source if and only if it has cross-attention")
        if cross is not None and source is not None:
            x_BSE = self._residual(x_BSE, "cross_attention", lambda x: cross(x, source, lengths))
        if self.feed_forward is None:
            return x_BSE
        return self._residual(x_BSE, "feed_forward", self.feed_forward)

    def _both(
        self,
        x: Tensor,
        mix: Callable[[Tensor], Tensor],
        pick: Pick = same,
    ) -> Tensor:
        """Compute both sublayers in parallel, for the tokens that `mix` and `pick` select."""
        if self.feed_forward is None:
            raise TypeError("parallel sublayers need a feed-forward layer")
        normed = self.get_submodule(f"{self.mixing}_norm")(x)
        mixed, x = mix(normed), pick(x)
        read = pick(normed) if self.placement == "parallel" else self.feed_forward_norm(x)
        return x + self._scaled(mixed + self.feed_forward(read))

    def _residual(
        self,
        x: Tensor,
        name: str,
        sublayer: Callable[[Tensor], Tensor],
        pick: Pick = same,
    ) -> Tensor:
        """Apply a sublayer with its norm and residual connection to the selected tokens."""
        normalise = self.get_submodule(f"{name}_norm")
        match self.placement:
            case "pre_residual":
                normed: Tensor = normalise(x)
                return pick(normed) + self._scaled(sublayer(normed), name)
            case "inner_post":
                return pick(x) + self._scaled(normalise(sublayer(x)), name)
            case "sandwich":
                after = self.get_submodule(f"{name}_post_norm")
                return pick(x) + self._scaled(after(sublayer(normalise(x))), name)
            case "post":
                out: Tensor = normalise(pick(x) + self._scaled(sublayer(x), name))
                return out
            case _:
                return pick(x) + self._scaled(sublayer(normalise(x)), name)

    def _scaled(self, added: Tensor, name: str = "") -> Tensor:
        """Scale what the sublayer of this name adds."""
        if self.layer_scale:
            added = added * self.get_parameter(f"{name}_scale")
        return added if self.residual_scale == 1.0 else added * self.residual_scale


def _sum(x: Tensor, added: Tensor | None) -> Tensor:
    return x if added is None else x + added


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
    """Name of a mixer in its block: `attention`, or its kind."""
    return "attention" if isinstance(config, AttentionConfig) else _KINDS[type(config)].name


def mixer(config: Mixer, width: int, positions: Positions | None) -> nn.Module:
    """The layer of a mixer."""
    if isinstance(config, AttentionConfig):
        return SelfAttention(config, width, positions=positions)
    return _KINDS[type(config)].layer(config, width)
