"""Output heads of encoders.

Shape letters: B batch, T tokens, Q queries, E model width, V vocabulary, L labels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import (
    AttentionConfig,
    AttentionPooling,
    ClassifierHead,
    CtcHead,
    EmbeddingHead,
    EncoderConfig,
    EndToken,
    FeatureHead,
    FeedForwardConfig,
    GridInput,
    LanguageModelHead,
    PatchInput,
    Pooling,
    Projection,
    TokenInput,
)
from ortolan.modeling.config.head import pooled_width
from ortolan.modeling.layers.attention import CrossAttention
from ortolan.modeling.layers.feed_forward import ACTIVATIONS, FeedForward
from ortolan.modeling.layers.norms import norm


def pool(x_BTE: Tensor, lengths: Tensor | None, pooling: Pooling, *, before: int = 1) -> Tensor:
    """Pool the tokens of each sequence to one vector, `(B, E)`, ignoring padding.

    `first_and_mean` returns `(B, 2 * E)`; the mean is that of all vectors after the first `before`.

    Sums and lengths use float32: bfloat16 counts only to 256, and float16 overflows at 65504.
    """
    if pooling == "first":
        return x_BTE[:, 0]
    if pooling == "first_and_mean":
        if lengths is not None:
            raise ValueError("first_and_mean: only images, which have no padding, are pooled so")
        return torch.cat((x_BTE[:, 0], x_BTE[:, before:].mean(1)), -1)
    batch, tokens = x_BTE.shape[:2]
    if lengths is None:
        if pooling == "mean":
            return x_BTE.mean(1)
        lengths = torch.full((batch,), tokens, device=x_BTE.device)
    if pooling == "last":
        last_B11 = (lengths.long() - 1)[:, None, None]
        return x_BTE.gather(1, last_B11.expand(-1, 1, x_BTE.shape[2])).squeeze(1)
    slots_T = torch.arange(tokens, device=x_BTE.device)
    outside_BT1 = (slots_T >= lengths[:, None])[..., None]
    if pooling == "max":
        return x_BTE.masked_fill(outside_BT1, float("-inf")).amax(1)
    inside_BTE = x_BTE.masked_fill(outside_BT1, 0.0).float()
    count_B1 = lengths[:, None].float()
    if pooling == "weighted_mean":
        weights_T1 = (slots_T + 1).float()[:, None]
        pooled_BE = (inside_BTE * weights_T1).sum(1) / (count_B1 * (count_B1 + 1) / 2)
    else:
        pooled_BE = inside_BTE.sum(1) / (count_B1 if pooling == "mean" else count_B1.sqrt())
    return pooled_BE.to(x_BTE.dtype)


def lengths_to_end(ids_BT: Tensor, lengths: Tensor | None, end: EndToken) -> Tensor:
    """Tokens up to the first end token of each text, int64 `(B,)`; 1 if there is none.

    Args:
        ids_BT: of the tokens.
        lengths: int `(B,)`; valid tokens per row; None if all are valid.
        end: see `EmbeddingHead`.
    """
    marks_BT = ids_BT if end == "highest" else torch.where(ids_BT == end, 1, 0)
    if lengths is not None:
        slots_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        marks_BT = torch.where(slots_T < lengths[:, None], marks_BT, 0)
    # CUDA has no kernel of ArgMax, but nodes of integers may stay on the CPU
    return marks_BT.int().argmax(1) + 1


class LanguageModel(nn.Module):
    """Vocabulary logits of every token.

    Attributes:
        weight: `(V, E)`; None if the head is tied to the embedding.
    """

    def __init__(self, config: LanguageModelHead, width: int, vocabulary: int) -> None:
        super().__init__()
        self.transform: nn.Module | None = None
        self.weight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if (layer := config.layer) is not None:
            self.transform = nn.Linear(width, layer.width or width, bias=layer.bias)
            width = layer.width or width
            self.activation = ACTIVATIONS[layer.activation]
            self.norm = norm(layer.norm, width)
        if not config.tied:
            self.weight = nn.Parameter(torch.empty(vocabulary, width).normal_(std=0.02))
        if config.bias:
            self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, x_BTE: Tensor, embedding_VE: Tensor | None) -> Tensor:
        """`(B, T, E)` to `(B, T, V)`; a tied head needs `embedding_VE`."""
        if self.transform is not None:
            x_BTE = self.norm(self.activation(self.transform(x_BTE)))
        weight = embedding_VE if self.weight is None else self.weight
        if weight is None:
            raise TypeError("a tied head needs the embedding table")
        return F.linear(x_BTE, weight, self.bias)


class Classifier(nn.Module):
    """Label logits of each sequence or image, or of each token."""

    def __init__(self, config: ClassifierHead, width: int, *, before: int = 1) -> None:
        super().__init__()
        self.before = before
        self.pooling = config.pooling
        width = width if config.pooling is None else pooled_width(config.pooling, width)
        self.dense: nn.Module | None = None
        if (layer := config.layer) is not None:
            self.dense = nn.Linear(width, width, bias=layer.bias)
            self.activation = ACTIVATIONS[layer.activation]
            self.norm = norm(layer.norm, width)
        self.out = nn.Linear(width, len(config.labels))
        self.distilled: nn.Module | None = (
            nn.Linear(width, len(config.labels)) if config.distilled else None
        )

    def forward(self, x_BTE: Tensor, lengths: Tensor | None) -> Tensor:
        """`(B, T, E)` to `(B, L)`, or to `(B, T, L)` without pooling."""
        x = x_BTE
        if self.pooling is not None:
            x = pool(x_BTE, lengths, self.pooling, before=self.before)
        if self.dense is not None:
            x = self.norm(self.activation(self.dense(x)))
        logits: Tensor = self.out(x)
        if self.distilled is not None:
            logits = (logits + self.distilled(x_BTE[:, 1])) / 2
        return logits


class AttentionPool(nn.Module):
    """Attention of a trained query to all tokens, and a residual mlp."""

    def __init__(self, config: AttentionPooling, width: int) -> None:
        super().__init__()
        head_dim = width // config.num_heads
        attention = AttentionConfig(
            num_heads=config.num_heads,
            num_kv_heads=config.num_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            qkv_bias=True,
            out_bias=True,
            causal=False,
        )
        mlp = FeedForwardConfig(
            kind="mlp",
            intermediate_size=config.intermediate_size,
            activation=config.activation,
            bias=True,
        )
        self.query = nn.Parameter(torch.zeros(width))
        self.attention = CrossAttention(attention, width)
        self.norm = norm(config.norm, width)
        self.feed_forward = FeedForward(mlp, width)

    def forward(self, x_BTE: Tensor, lengths: Tensor | None) -> Tensor:
        """`(B, T, E)` to `(B, E)`, ignoring padding."""
        query_BQE = self.query.view(1, 1, -1)
        if x_BTE.shape[0] != 1:  # a graph of one image needs no sizes
            query_BQE = query_BQE.expand(x_BTE.shape[0], -1, -1)
        pooled_BQE = self.attention(query_BQE, self.attention.states(x_BTE), lengths)
        out_BQE: Tensor = pooled_BQE + self.feed_forward(self.norm(pooled_BQE))
        return out_BQE[:, 0]


class Projections(nn.ModuleList):
    """Matrices with activations, one after another."""

    def __init__(self, layers: Sequence[Projection], width: int) -> None:
        super().__init__()
        for layer in layers:
            self.append(nn.Linear(width, layer.width, bias=layer.bias))
            width = layer.width
        self.activations = [layer.activation for layer in layers]

    def forward(self, x: Tensor) -> Tensor:
        """`(..., E)` to `(..., width of the last)`."""
        linears = cast(Iterable[nn.Linear], self)
        for dense, activation in zip(linears, self.activations, strict=True):
            bias = dense.bias
            if bias is None and x.ndim == 2:
                # the vocabulary of graphs has products of two matrices with a bias only
                bias = dense.weight.new_zeros(dense.out_features)
            x = F.linear(x, dense.weight, bias)
            if activation is not None:
                x = ACTIVATIONS[activation](x)
        return x


class Embedder(nn.Module):
    """One vector per sequence."""

    def __init__(self, config: EmbeddingHead, width: int) -> None:
        super().__init__()
        self.config = config
        self.pool: AttentionPool | None = None
        self._poolings: tuple[Pooling, ...] = ()
        if isinstance(config.pooling, AttentionPooling):
            self.pool = AttentionPool(config.pooling, width)
        else:
            self._poolings = config.pooling
        self.projections = Projections(config.projections, config.pooled_width(width))

    def forward(self, x_BTE: Tensor, lengths: Tensor | None) -> Tensor:
        """`(B, T, E)` to `(B, width)`; normalized vectors are float32 for the range of squares."""
        x_BE: Tensor = self.projections(self._pooled(x_BTE, lengths))
        return F.normalize(x_BE.float(), dim=-1) if self.config.normalised else x_BE

    def _pooled(self, x_BTE: Tensor, lengths: Tensor | None) -> Tensor:
        if self.pool is not None:
            out: Tensor = self.pool(x_BTE, lengths)
            return out
        pooled = [pool(x_BTE, lengths, pooling) for pooling in self._poolings]
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1)


class Features(nn.Module):
    """Vectors for a decoder."""

    def __init__(self, config: FeatureHead, width: int, grid: tuple[int, int] | None) -> None:
        super().__init__()
        self.config = config
        self.grid = grid
        width *= config.pixel_shuffle**2
        self.norm = norm(config.norm, width)
        self.projections = Projections(config.projections, width)
        of_early = replace(config, norm=config.early_norm, early=())
        self.early = nn.ModuleList(
            Features(of_early, width // config.pixel_shuffle**2, grid) for _ in config.early
        )

    def joined(self, x_BTE: Tensor, early: Sequence[Tensor]) -> Tensor:
        """`forward` with further parts from the outputs of the early layers."""
        heads = cast(Iterable[Features], self.early)
        parts = (head(x, None) for head, x in zip(heads, early, strict=True))
        return torch.cat((self(x_BTE, None), *parts), -1)

    def forward(self, x_BTE: Tensor, lengths: Tensor | None) -> Tensor:
        """`(B, T, E)` to `(B, (T - skipped) / square ** 2, width)`, without lengths."""
        x_BPE = x_BTE[:, self.config.skipped :]
        if self.grid is None:  # patches of a square follow each other
            x_BPE = x_BPE.reshape(1, -1, x_BPE.shape[-1] * self.config.pixel_shuffle**2)
        elif self.config.pixel_shuffle > 1:
            x_BPE = pixel_shuffle(x_BPE, self.grid, self.config.pixel_shuffle)
        elif self.config.average > 1:
            x_BPE = average(x_BPE, self.grid, self.config.average)
        out_BPE: Tensor = self.projections(self.norm(x_BPE))
        return out_BPE


class Ctc(nn.Module):
    """Logits of symbols for every vector."""

    def __init__(self, config: CtcHead, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, config.size)

    def forward(self, x_BTE: Tensor, lengths: Tensor | None) -> Tensor:
        """`(B, T, E)` to `(B, T, size)`; waves have no lengths."""
        logits: Tensor = self.out(x_BTE)
        return logits


def pixel_shuffle(x_BPE: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """Join the vectors of squares of patches, row by row: `(B, P / side ** 2, E * side ** 2)`."""
    rows, columns = grid[0] // side, grid[1] // side
    width = x_BPE.shape[-1]
    squares = x_BPE.view(-1, rows, side, columns, side, width).transpose(2, 3)
    return squares.reshape(-1, rows * columns, width * side**2)


def average(x_BPE: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """Average the vectors of squares of patches, row by row: `(B, P / side ** 2, E)`."""
    rows, columns = grid[0] // side, grid[1] // side
    width = x_BPE.shape[-1]
    squares = x_BPE.view(-1, rows, side, columns, side, width)
    return squares.mean((2, 4)).reshape(-1, rows * columns, width)


def encoder_head(config: EncoderConfig) -> nn.Module | None:
    """The head of a config; None without one."""
    match config.head, config.input:
        case (LanguageModelHead() as kind, TokenInput(vocab_size=size)):
            return LanguageModel(kind, config.hidden_size, size)
        case (ClassifierHead() as kind, PatchInput(tokens=tokens)):
            return Classifier(kind, config.hidden_size, before=tokens)
        case (ClassifierHead() as kind, _):
            return Classifier(kind, config.hidden_size)
        case (EmbeddingHead() as kind, _):
            return Embedder(kind, config.hidden_size)
        case (FeatureHead() as kind, source):
            fixed = source.grid if isinstance(source, PatchInput) else (1, 1)
            grid = None if isinstance(source, GridInput) else fixed
            return Features(kind, config.hidden_size, grid)
        case (CtcHead() as kind, _):
            return Ctc(kind, config.hidden_size)
        case _:
            return None
