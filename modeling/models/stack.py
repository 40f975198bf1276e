"""The part that encoders and decoders share: embedding, positions, blocks and a final norm.

Shape letters: B batch, S tokens, T tokens attended to, E model width, H heads, M distances.
"""

from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import (
    AlibiPositions,
    EncoderConfig,
    GridPositions,
    LearnedPositions,
    RelativeBiasPositions,
    RotaryPositions,
    StackConfig,
)
from ortolan.modeling.config.positions import added_table
from ortolan.modeling.layers.block import Block
from ortolan.modeling.layers.embeddings import (
    TokenFeatures,
    position_convolution,
    position_embedding,
)
from ortolan.modeling.layers.nodes import Rotary
from ortolan.modeling.layers.norms import norm
from ortolan.modeling.layers.positions import (
    axes_name,
    by_axes,
    relative_index,
    rotary_names,
    tables,
)
from ortolan.modeling.layers.scores import Relative, add, window_bias
from ortolan.modeling.models.model import TransformerModel


class Stack(TransformerModel):
    """Embedding, positions, blocks and a final norm."""

    config: StackConfig

    def __init__(self, config: StackConfig, embedding: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.embedding = embedding
        self.position_embedding = position_embedding(config)
        self.position_convolution = position_convolution(config)
        self.embedding_norm = norm(config.embedding_norm, config.embedding_width)
        self.embedding_projection = (
            nn.Linear(config.embedding_dim, config.hidden_size)
            if config.embedding_dim
            else nn.Identity()
        )
        self.position_bias: nn.Embedding | None = None
        match config.positions:
            case RelativeBiasPositions(buckets=buckets, each_layer=False):
                self.position_bias = nn.Embedding(buckets, config.attentions[0].num_heads)
        kinds = config.blocks[:1] if config.shared_block else config.blocks
        blocks = [Block(kind, config.hidden_size, positions=config.positions) for kind in kinds]
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = norm(config.final_norm, config.hidden_size)
        for name, table in tables(config).items():
            self.register_buffer(name, table, persistent=False)

    def rotary(self, layer: int) -> Rotary | None:
        """Rotary tables of a layer; None without rotary positions."""
        positions = self.config.rotary_of(self.config.blocks[layer].mixer)
        return None if positions is None else self._tables(positions)

    def angles(self, positions_BSA: Tensor | None) -> list[Rotary | None]:
        """`rotary` of each layer, or the angles of tokens with a position on each axis."""
        of_kind: dict[RotaryPositions | None, Rotary | None] = {None: None}
        for place, kind in enumerate(self.config.rotaries):
            rotary = self._tables(kind)
            if positions_BSA is not None and kind.reads_axes:
                rotary = by_axes(rotary, self.get_buffer(axes_name(place)), positions_BSA)
            of_kind[kind] = rotary
        return [of_kind[self.config.rotary_of(block.mixer)] for block in self.config.blocks]

    def _tables(self, positions: RotaryPositions) -> Rotary:
        cos, sin = map(self.get_buffer, rotary_names(self.config.rotaries.index(positions)))
        return Rotary(cos, sin, positions.interleaved)

    @property
    def layers(self) -> Iterable[Block]:
        """The blocks in the order they run; a shared block occurs repeatedly."""
        blocks = list(cast(Iterable[Block], self.blocks))
        return blocks * (len(self.config.blocks) // len(blocks))

    def relative(self, positions_BS: Tensor, keys: int) -> Relative | None:
        """Contribution to the scores of distances to keys 0, 1, ...; None without such positions.

        Positions of the queries are int `(B, S)` or `(1, S)`.
        """
        match self.config.positions:
            case RelativeBiasPositions(max_distance=most):
                rows_BST = relative_index(positions_BS, keys, most)
                relative = Relative(rows=rows_BST, buckets=self._buffers["relative_buckets"])
                return relative if self.position_bias is None else relative.by(self.position_bias)
            case AlibiPositions(rounded=True):
                by_key_HT = cast(Tensor, self._buffers["alibi_table"])[:, :keys]
                bias_HST = by_key_HT[:, None].expand(-1, positions_BS.shape[1], -1)
                return Relative(bias=bias_HST[None])
            case AlibiPositions():
                slots_T = torch.arange(keys, device=positions_BS.device)
                distance_BST = (positions_BS[..., None] - slots_T).abs()
                slopes_H = cast(Tensor, self._buffers["alibi_slopes"])
                return Relative(bias=slopes_H[:, None, None] * -distance_BST[:, None])
            case _:
                return None

    def relatives(
        self, positions_BS: Tensor, keys: int, dtype: torch.dtype
    ) -> list[Relative | None]:
        """`relative` for each layer, including its window if attention is two-sided.

        `dtype` is that of the residual stream.
        """
        shared = self.relative(positions_BS, keys)
        windows = [
            None if attention.causal else attention.sliding_window
            for attention in self.config.attentions
        ]
        of_window: dict[int | None, Relative | None] = {None: shared}
        for window in windows:
            if window is not None and window not in of_window:
                bias = window_bias(positions_BS, keys, window, dtype)
                unwindowed = Relative() if shared is None else shared
                of_window[window] = unwindowed._replace(bias=add(unwindowed.bias, bias))
        return [of_window[window] for window in windows]

    def embed(
        self,
        inputs: Tensor,
        positions: Tensor,
        added: Tensor | None = None,
        features: TokenFeatures | None = None,
    ) -> Tensor:
        """Embed inputs, `(B, S, E)`.

        Args:
            inputs: int64 ids `(B, S)`, pixels, spectrograms or waves.
            positions: positions of the tokens, `(B, S)` or `(1, S)`.
            added: vectors to add, `(B, S, E)` or `(1, 1, E)`.
            features: vectors that replace embeddings.
        """
        x_BSE: Tensor = self.embedding(inputs)
        if self.config.embedding_scale != 1.0:
            x_BSE = x_BSE * self.config.embedding_scale
        if features is not None:
            x_BSE = features.placed(x_BSE)
        if added is not None:
            x_BSE = x_BSE + added
        position_BSE = self._position_vectors(positions)
        if position_BSE is not None:
            x_BSE = x_BSE + position_BSE
        if self.position_convolution is not None:
            x_BSE = x_BSE + self.position_convolution(x_BSE)
        out: Tensor = self.embedding_projection(self.embedding_norm(x_BSE))
        return out

    def _position_vectors(self, positions: Tensor) -> Tensor | None:
        """Rows of the position table, learned or fixed; None without a table."""
        if isinstance(self.config.positions, GridPositions):
            return None  # added by the encoder, which knows the grid
        source = added_table(self.config.positions)
        if self.position_embedding is not None:
            if isinstance(source, LearnedPositions) and source.offset:
                positions = positions + source.offset
            learned: Tensor = self.position_embedding(positions)
            return learned
        table = self._buffers.get("position_table")
        if table is None:
            return None
        if isinstance(self.config, EncoderConfig) and source and source.padding is not None:
            vectors = F.embedding(positions.clamp(min=0), table)
            return torch.where((positions >= 0)[..., None], vectors, 0.0)
        return F.embedding(positions, table)
