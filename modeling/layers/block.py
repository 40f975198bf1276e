"""One layer: attention, perhaps to a source too, and feed-forward.

Shape letters: B batch, S new tokens, N of them to go on with, T tokens of the source, E model
width.
"""

from collections.abc import Callable

from torch import Tensor, nn

from ortolan.modeling.config import BlockConfig, MixtureConfig
from ortolan.modeling.layers.attention import CrossAttention, SelfAttention, same
from ortolan.modeling.layers.cache import LayerCache, StepLengths
from ortolan.modeling.layers.feed_forward import feed_forward
from ortolan.modeling.layers.mixture import Mixture
from ortolan.modeling.layers.norms import norm
from ortolan.modeling.layers.ops import Relative, Rotary


class Block(nn.Module):
    """Attention and feed-forward, each in a residual, each with its norm.

    Args:
        config: its parts.
        width: of the stream.
        distances: rows of its attention's table of distances; None without one.
    """

    def __init__(self, config: BlockConfig, width: int, *, distances: int | None = None) -> None:
        super().__init__()
        self.placement = config.placement
        self.parallel = config.parallel
        self.attention_norm = norm(config.norm, width)
        self.attention = SelfAttention(config.attention, width, distances=distances)
        self.cross_attention: CrossAttention | None = None
        if config.cross_attention is not None:
            self.cross_attention_norm = norm(config.norm, width)
            self.cross_attention = CrossAttention(config.cross_attention, width)
        one_norm = config.placement == "parallel"
        self.feed_forward_norm = nn.Identity() if one_norm else norm(config.norm, width)
        self.feed_forward = (
            Mixture(config.feed_forward, width)
            if isinstance(config.feed_forward, MixtureConfig)
            else feed_forward(config.feed_forward, width)
        )

    def forward(
        self,
        x_BSE: Tensor,
        rotary: Rotary | None,
        relative: Relative | None = None,
        *,
        lengths: Tensor | None = None,
        source: LayerCache | None = None,
        source_lengths: Tensor | None = None,
    ) -> Tensor:
        """`(B, S, E)` to `(B, S, E)`, without a cache.

        Args:
            x_BSE: the stream.
            rotary: the stack's tables, if it has them.
            relative: the stack's relative positions.
            lengths: int `(B,)`; valid tokens of each row; None where all are.
            source: keys and values to attend to, if this layer does.
            source_lengths: int `(B,)`; valid tokens of the source; None where all are.
        """

        def attend(x: Tensor) -> Tensor:
            out: Tensor = self.attention(x, rotary, relative, lengths)
            return out

        if self.parallel:
            return self._both(x_BSE, attend)
        x_BSE = self._residual(x_BSE, self.attention_norm, attend)
        return self._rest(x_BSE, source, source_lengths)

    def step(
        self,
        x_BSE: Tensor,
        rotary: Rotary | None,
        past: LayerCache,
        step: StepLengths,
        relative: Relative | None = None,
        *,
        source: LayerCache | None = None,
        source_lengths: Tensor | None = None,
        pick: Callable[[Tensor], Tensor] = same,
    ) -> tuple[Tensor, LayerCache]:
        """The same for new tokens after a cache, which comes back extended.

        With `pick`, which takes `(B, N, ...)` from `(B, S, ...)`, all tokens enter the cache and
        what follows is computed for these alone: `(B, S, E)` to `(B, N, E)`.
        """
        present = past

        def attend(x: Tensor) -> Tensor:
            nonlocal present
            out, present = self.attention.step(x, rotary, past, step, relative, pick)
            return out

        if self.parallel:
            return self._both(x_BSE, attend, pick), present
        x_BNE = self._residual(x_BSE, self.attention_norm, attend, pick)
        return self._rest(x_BNE, source, source_lengths), present

    def _rest(self, x_BSE: Tensor, source: LayerCache | None, lengths: Tensor | None) -> Tensor:
        """What follows the self-attention."""
        cross = self.cross_attention
        if (cross is None) != (source is None):
            raise TypeError("a layer with cross-attention needs a source, another takes none")
        if cross is not None and source is not None:
            x_BSE = self._residual(
                x_BSE, self.cross_attention_norm, lambda x: cross(x, source, lengths)
            )
        return self._residual(x_BSE, self.feed_forward_norm, self.feed_forward)

    def _both(
        self,
        x: Tensor,
        attend: Callable[[Tensor], Tensor],
        pick: Callable[[Tensor], Tensor] = same,
    ) -> Tensor:
        """Both sublayers side by side, for the tokens that `attend` and `pick` let through."""
        normed = self.attention_norm(x)
        attended, x = attend(normed), pick(x)
        read = pick(normed) if self.placement == "parallel" else self.feed_forward_norm(x)
        out: Tensor = x + (attended + self.feed_forward(read))
        return out

    def _residual(
        self,
        x: Tensor,
        normalise: nn.Module,
        sublayer: Callable[[Tensor], Tensor],
        pick: Callable[[Tensor], Tensor] = same,
    ) -> Tensor:
        """A sublayer and what goes around it, for the tokens that both let through."""
        match self.placement:
            case "pre_residual":
                normed: Tensor = normalise(x)
                return pick(normed) + sublayer(normed)
            case "post":
                out: Tensor = normalise(pick(x) + sublayer(x))
                return out
            case _:
                return pick(x) + sublayer(normalise(x))
