"""Blocks, and the decoder that stacks them.

Shape letters: B batch, S new tokens, E model width, V vocabulary, N positions asked for.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.attention import SelfAttention
from ortolan.modeling.cache import LayerCache, Step
from ortolan.modeling.config import BlockConfig, LearnedPositions, TransformerConfig
from ortolan.modeling.feed_forward import feed_forward
from ortolan.modeling.norms import norm
from ortolan.modeling.ops import Rotary
from ortolan.modeling.positions import tables


class Block(nn.Module):
    """Attention and feed-forward, each in a residual, each with its norm."""

    def __init__(self, config: BlockConfig, width: int) -> None:
        super().__init__()
        self.placement = config.placement
        self.attention_norm = norm(config.norm, width)
        self.attention = SelfAttention(config.attention, width)
        self.feed_forward_norm = norm(config.norm, width)
        self.feed_forward = feed_forward(config.feed_forward, width)

    def forward(self, x_BSE: Tensor, rotary: Rotary | None) -> Tensor:
        """`(B, S, E)` to `(B, S, E)`, without a cache."""
        x_BSE = self._residual(x_BSE, self.attention_norm, lambda x: self.attention(x, rotary))
        return self._residual(x_BSE, self.feed_forward_norm, self.feed_forward)

    def step(
        self, x_BSE: Tensor, rotary: Rotary | None, past: LayerCache, step: Step
    ) -> tuple[Tensor, LayerCache]:
        """The same for new tokens behind a cache, which comes back extended."""
        present = past

        def attend(x: Tensor) -> Tensor:
            nonlocal present
            out, present = self.attention.step(x, rotary, past, step)
            return out

        x_BSE = self._residual(x_BSE, self.attention_norm, attend)
        return self._residual(x_BSE, self.feed_forward_norm, self.feed_forward), present

    def _residual(
        self, x: Tensor, normalise: nn.Module, sublayer: Callable[[Tensor], Tensor]
    ) -> Tensor:
        if self.placement == "pre":
            return x + sublayer(normalise(x))
        out: Tensor = normalise(x + sublayer(x))
        return out


class Decoder(nn.Module):
    """A decoder-only language model.

    `module(ids)` gives the logits of whole texts; `step` continues texts behind a cache and is
    what `export` traces.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding: nn.Embedding | None = (
            nn.Embedding(config.context_length, config.hidden_size)
            if isinstance(config.positions, LearnedPositions)
            else None
        )
        self.blocks = nn.ModuleList(Block(block, config.hidden_size) for block in config.blocks)
        self.final_norm = (
            norm(config.final_norm, config.hidden_size) if config.final_norm else nn.Identity()
        )
        self.head: nn.Linear | None = (
            None
            if config.tied_head
            else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        for name, table in tables(config).items():
            self.register_buffer(name, table, persistent=False)

    @property
    def rotary(self) -> Rotary | None:
        """The rotary tables, if the positions are rotary."""
        cos, sin = (self._buffers.get(name) for name in ("rotary_cos", "rotary_sin"))
        return None if cos is None or sin is None else (cos, sin)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits of whole texts: int64 `(B, S)` to `(B, S, V)`."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        x_BSE = self.embed(input_ids, positions)
        for block in self.blocks:
            x_BSE = block(x_BSE, self.rotary)
        return self.logits(x_BSE)

    def step(
        self,
        input_ids: Tensor,
        step: Step,
        cache: Sequence[LayerCache],
        logit_positions: Tensor | None = None,
    ) -> tuple[Tensor, list[LayerCache]]:
        """Continue texts.

        Args:
            input_ids: int64 `(B, S)`, right padded.
            step: lengths after this step.
            cache: one entry a layer; see `cached_attention`.
            logit_positions: int64 `(B, N)`, indices into this step's S tokens; None for all.

        Returns:
            Logits `(B, N, V)`, and the extended cache.
        """
        x_BSE = self.embed(input_ids, step.positions(input_ids.shape[1]))
        present = []
        for block, past in zip(cast(Iterable[Block], self.blocks), cache, strict=True):
            x_BSE, extended = block.step(x_BSE, self.rotary, past, step)
            present.append(extended)
        if logit_positions is not None:
            x_BSE = _select(x_BSE, logit_positions)
        return self.logits(x_BSE), present

    def embed(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Ids `(B, S)` at positions `(B, S)` or `(1, S)` to the stream that enters the blocks."""
        x_BSE: Tensor = self.embedding(input_ids)
        if self.config.embedding_scale != 1.0:
            x_BSE = x_BSE * self.config.embedding_scale
        if self.position_embedding is not None:
            learned_BSE: Tensor = self.position_embedding(positions)
            return x_BSE + learned_BSE
        table = self._buffers.get("position_table")
        return x_BSE if table is None else x_BSE + F.embedding(positions, table)

    def logits(self, x_BSE: Tensor) -> Tensor:
        """The stream that leaves the blocks, `(B, S, E)`, to logits `(B, S, V)`."""
        head = self.embedding if self.head is None else self.head
        logits_BSV: Tensor = F.linear(self.final_norm(x_BSE), head.weight)
        return logits_BSV


def _select(x_BSE: Tensor, positions_BN: Tensor) -> Tensor:
    """Rows of each text, `(B, N, E)`."""
    return x_BSE.gather(1, positions_BN.unsqueeze(-1).expand(-1, -1, x_BSE.shape[-1]))
