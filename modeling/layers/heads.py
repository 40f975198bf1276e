"""The heads of encoders.

Shape letters: B batch, T tokens, E model width, V vocabulary, L labels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import (
    ClassifierHead,
    EmbeddingHead,
    EncoderConfig,
    LanguageModelHead,
    Pooling,
    TokenInput,
)
from ortolan.modeling.layers.feed_forward import ACTIVATIONS
from ortolan.modeling.layers.norms import norm


def pool(x_BTE: Tensor, lengths: Tensor | None, pooling: Pooling) -> Tensor:
    """One vector of each text, `(B, E)`; tokens after its length do not count.

    Sums and lengths are float32: bfloat16 counts to 256 only, and float16 reaches 65504.
    """
    if pooling == "first":
        return x_BTE[:, 0]
    if lengths is None:
        return x_BTE.mean(1)
    slots_T = torch.arange(x_BTE.shape[1], device=x_BTE.device)
    inside_BT1 = (slots_T < lengths[:, None])[..., None]
    sum_BE = x_BTE.masked_fill(~inside_BT1, 0.0).float().sum(1)
    return (sum_BE / lengths[:, None].float()).to(x_BTE.dtype)


class LanguageModel(nn.Module):
    """Logits of the vocabulary for every token.

    Attributes:
        weight: `(V, E)`; None where it is the embedding's table.
    """

    def __init__(self, config: LanguageModelHead, width: int, vocabulary: int) -> None:
        super().__init__()
        self.transform: nn.Module | None = None
        self.weight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if config.activation is not None and config.norm is not None:
            self.transform = nn.Linear(width, width)
            self.activation = ACTIVATIONS[config.activation]
            self.norm = norm(config.norm, width)
        if not config.tied:
            self.weight = nn.Parameter(torch.empty(vocabulary, width).normal_(std=0.02))
        if config.bias:
            self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, x_BTE: Tensor, embedding_VE: Tensor | None) -> Tensor:
        """`(B, T, E)` to `(B, T, V)`; `embedding_VE` is the table of a tied head."""
        if self.transform is not None:
            x_BTE = self.norm(self.activation(self.transform(x_BTE)))
        weight = embedding_VE if self.weight is None else self.weight
        if weight is None:
            raise TypeError("a tied head needs the embedding's table")
        return F.linear(x_BTE, weight, self.bias)


class Classifier(nn.Module):
    """Logits of the labels for each text or image."""

    def __init__(self, config: ClassifierHead, width: int) -> None:
        super().__init__()
        self.pooling = config.pooling
        self.dense: nn.Module | None = None
        if config.activation is not None:
            self.dense = nn.Linear(width, width)
            self.activation = ACTIVATIONS[config.activation]
        self.out = nn.Linear(width, len(config.labels))

    def forward(self, x_BTE: Tensor, lengths: Tensor | None) -> Tensor:
        """`(B, T, E)` to `(B, L)`."""
        x_BE = pool(x_BTE, lengths, self.pooling)
        if self.dense is not None:
            x_BE = self.activation(self.dense(x_BE))
        logits_BL: Tensor = self.out(x_BE)
        return logits_BL


class Embedder(nn.Module):
    """One vector for each text; it has no weights."""

    def __init__(self, config: EmbeddingHead) -> None:
        super().__init__()
        self.config = config

    def forward(self, x_BTE: Tensor, lengths: Tensor | None) -> Tensor:
        """`(B, T, E)` to `(B, E)`; float32 where it is normalised, whose squares need the range."""
        x_BE = pool(x_BTE, lengths, self.config.pooling)
        return F.normalize(x_BE.float(), dim=-1) if self.config.normalised else x_BE


def encoder_head(config: EncoderConfig) -> nn.Module | None:
    """The head that `config` names."""
    match config.head, config.input:
        case (LanguageModelHead() as kind, TokenInput(vocab_size=size)):
            return LanguageModel(kind, config.hidden_size, size)
        case (ClassifierHead() as kind, _):
            return Classifier(kind, config.hidden_size)
        case (EmbeddingHead() as kind, _):
            return Embedder(kind)
        case _:
            return None
