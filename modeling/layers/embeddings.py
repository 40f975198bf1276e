"""Embeddings of tokens, image patches, spectrograms and waves.

Shape letters: B batch, T tokens, E model width, C pixel channels, Y image height, X image width,
N patches, F features, S new tokens, M mel bins, A frames of a spectrogram, W samples of a wave.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import (
    AudioInput,
    ChunkedAudioInput,
    ConvolutionalPositions,
    EncoderConfig,
    GridInput,
    GridPositions,
    LearnedPositions,
    NormConfig,
    PatchInput,
    RelativeBiasPositions,
    StackConfig,
    WaveInput,
    WaveLayer,
)
from ortolan.modeling.layers.feed_forward import ACTIVATIONS
from ortolan.modeling.layers.grid import FlatPatchEmbedding, GridEmbedding
from ortolan.modeling.layers.norms import norm
from ortolan.modeling.layers.ops import split
from ortolan.modeling.layers.positions import image_positions


def bias_of(conv: nn.Conv1d | nn.Conv2d) -> Tensor:
    """Bias of a convolution, or zeros: without one, the exporter computes its size in the graph."""
    return conv.weight.new_zeros(conv.out_channels) if conv.bias is None else conv.bias


class PatchEmbedding(nn.Module):
    """Linear embedding of image patches (Dosovitskiy et al. 2021), after the trained tokens."""

    def __init__(self, config: PatchInput, width: int) -> None:
        super().__init__()
        self.image = (config.channels, *config.image_size)
        size = config.patch_size
        self.projection = nn.Conv2d(
            config.channels, width, kernel_size=size, stride=size, bias=config.bias
        )
        self.class_token = nn.Parameter(torch.zeros(width)) if config.class_token else None
        self.distillation_token = (
            nn.Parameter(torch.zeros(width)) if config.distillation_token else None
        )

    def forward(self, pixels_BCYX: Tensor) -> Tensor:
        """Embed images `(B, C, Y, X)` as `(B, N, E)`, row by row, after the trained tokens.

        Registers follow later, since they have no positions.
        """
        if tuple(pixels_BCYX.shape[1:]) != self.image:
            raise ValueError(
                f"pixels: the model needs images of shape {self.image} (got "
                f"{tuple(pixels_BCYX.shape[1:])}). Resize them."
            )
        conv = self.projection
        patches_BEYX = F.conv2d(pixels_BCYX, conv.weight, bias_of(conv), conv.stride)
        x_BNE = patches_BEYX.flatten(2).transpose(1, 2)
        tokens = [t for t in (self.class_token, self.distillation_token) if t is not None]
        if not tokens:
            return x_BNE
        first_BNE = [token.expand(x_BNE.shape[0], 1, -1) for token in tokens]
        return torch.cat((*first_BNE, x_BNE), 1)


class Registers(nn.Module):
    """Trained vectors before the patches of an image (Darcet et al. 2024)."""

    def __init__(self, config: PatchInput, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.registers, width))
        self.before, self.patches = config.tokens - config.registers, math.prod(config.grid)

    def forward(self, x_BNE: Tensor) -> Tensor:
        """Put the vectors between the other trained tokens and the patches, `(B, N, E)`."""
        registers_BRE = self.weight.expand(x_BNE.shape[0], -1, -1)
        if not self.before:
            return torch.cat((registers_BRE, x_BNE), 1)
        first_BNE, patches_BNE = split(x_BNE, [self.before, self.patches], 1)
        return torch.cat((first_BNE, registers_BRE, patches_BNE), 1)


class AudioEmbedding(nn.Module):
    """Embedding of spectrograms by two convolutions over time (Radford et al. 2023, "Whisper")."""

    def __init__(self, config: AudioInput, width: int) -> None:
        super().__init__()
        self.spectrogram = (config.bins, config.frames)
        self.conv1 = nn.Conv1d(config.bins, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)

    def forward(self, mel_BMA: Tensor) -> Tensor:
        """Embed spectrograms `(B, M, A)` as `(B, A / 2, E)`."""
        if tuple(mel_BMA.shape[1:]) != self.spectrogram:
            raise ValueError(
                f"mel: the model needs spectrograms of shape {self.spectrogram} (got "
                f"{tuple(mel_BMA.shape[1:])}). Pad or split them."
            )
        x_BEA = F.gelu(self.conv1(mel_BMA))
        return F.gelu(self.conv2(x_BEA)).transpose(1, 2)


class ChunkedAudioEmbedding(nn.Module):
    """Embedding of spectrograms by convolutions over frames and bins of each chunk."""

    def __init__(self, config: ChunkedAudioInput, width: int) -> None:
        super().__init__()
        self.config = config
        channels = (1, *(config.channels,) * 3)
        self.conv1, self.conv2, self.conv3 = (
            nn.Conv2d(before, after, kernel_size=3, stride=2, padding=1)
            for before, after in pairwise(channels)
        )
        self.projection = nn.Linear(config.channels * config.chunk_bins, width, bias=False)

    def forward(self, mel_KMA: Tensor) -> Tensor:
        """Embed the chunks of a sound `(K, M, A)` as `(K, vectors, E)`."""
        x_KCMA = mel_KMA[:, None]
        for conv in (self.conv1, self.conv2, self.conv3):
            x_KCMA = F.gelu(conv(x_KCMA))
        out: Tensor = self.projection(x_KCMA.permute(0, 3, 1, 2).flatten(2))
        return out


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of `(B, C, A)`."""

    def forward(self, x_BCA: Tensor) -> Tensor:
        """`(B, C, A)` to `(B, C, A)`."""
        return super().forward(x_BCA.transpose(1, 2)).transpose(1, 2)


class WaveConvolution(nn.Module):
    """A convolution over time with its norm and activation."""

    def __init__(self, config: WaveLayer, channels: int) -> None:
        super().__init__()
        width = config.channels
        self.conv = nn.Conv1d(
            channels, width, config.kernel, stride=config.stride, bias=config.bias
        )
        self.norm: nn.Module = nn.Identity()
        match config.norm:
            case "time":
                self.norm = nn.GroupNorm(width, width)
            case "channels":
                self.norm = ChannelNorm(width)
            case "all":
                self.norm = nn.GroupNorm(1, width)
        self.norm_last = config.norm_last
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x_BCA: Tensor) -> Tensor:
        """`(B, C, A)` to `(B, channels, (A - kernel) // stride + 1)`."""
        out: Tensor = F.conv1d(x_BCA, self.conv.weight, bias_of(self.conv), self.conv.stride)
        steps = (self.activation, self.norm) if self.norm_last else (self.norm, self.activation)
        for step in steps:
            out = step(out)
        return out


class WaveEmbedding(nn.Module):
    """Embedding of waves by strided convolutions (Baevski et al. 2020, "wav2vec 2.0")."""

    def __init__(self, config: WaveInput, width: int) -> None:
        super().__init__()
        widths = [1, *(layer.channels for layer in config.layers)]
        self.layers = nn.ModuleList(
            WaveConvolution(layer, channels)
            for layer, channels in zip(config.layers, widths, strict=False)
        )
        self.norm = norm(config.projection_norm, widths[-1])
        self.projection = nn.Linear(widths[-1], width) if config.projection else nn.Identity()

    def forward(self, wave_BW: Tensor) -> Tensor:
        """Embed waves `(B, W)`, without padding, as `(B, (W - window) // hop + 1, E)`."""
        x_BCA = wave_BW.unsqueeze(1)  # the exporter writes a slice for [:, None]
        for layer in self.layers:
            x_BCA = layer(x_BCA)
        out: Tensor = self.projection(self.norm(x_BCA.transpose(1, 2)))
        return out


class PositionConvolution(nn.Module):
    """Positions that a convolution sees in the distance of the zeros around a sequence."""

    def __init__(self, config: ConvolutionalPositions, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, config.kernel, groups=config.groups)
        self.padding = (config.kernel // 2, (config.kernel - 1) // 2)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x_BTE: Tensor) -> Tensor:
        """`(B, T, E)` to `(B, T, E)`."""
        x_BET = self.conv(F.pad(x_BTE.transpose(1, 2), self.padding))
        out: Tensor = self.activation(x_BET).transpose(1, 2)
        return out


class Features(NamedTuple):
    """Vectors that replace the embeddings of some tokens.

    Attributes:
        vectors: `(F, E)`, or `(F, parts * E)` if blocks add further parts; the first one is never
            used.
        rows: int64 `(B, S)`; the vector of each token, 0 for its own embedding.
        positions: int64 `(B, S, 3)` of all tokens, for a model whose positions have axes; None
            for the positions of a text.
    """

    vectors: Tensor
    rows: Tensor
    positions: Tensor | None = None

    @classmethod
    def of(
        cls,
        vectors: Tensor,
        input_ids: Tensor,
        token: int,
        grids: Sequence[tuple[int, int]] | None = None,
    ) -> "Features":
        """Give vectors `(N, E)` to the tokens `token` of ids `(B, S)`, in order.

        A model whose positions have axes needs the rows and columns of each image, `grids`.
        """
        is_placeholder = input_ids == token
        rows = is_placeholder.flatten().cumsum(0).view_as(input_ids) * is_placeholder
        positions = None if grids is None else image_positions(input_ids, token, grids)
        return cls(torch.cat((torch.zeros_like(vectors[:1]), vectors)), rows, positions)

    def reach(self, positions_BS: Tensor) -> Tensor:
        """Last position that each token sees if adjacent vectors see each other, int64 `(B, S)`."""
        places_S = torch.arange(self.rows.shape[1], device=self.rows.device)
        texts_BS = torch.where(self.rows >= 1, self.rows.shape[1], places_S)
        next_text_BS = texts_BS.flip(1).cummin(1).values.flip(1)
        last_BS = torch.where(self.rows >= 1, next_text_BS - 1, places_S)
        return positions_BS + last_BS - places_S

    def at_tokens(self, width: int, dtype: torch.dtype) -> "TokenFeatures":
        """The vectors at the tokens, in parts of `width`."""
        vectors_BSF = F.embedding(self.rows, self.vectors).to(dtype)
        are_vectors = self.rows[..., None] >= 1
        count = self.vectors.shape[-1] // width
        if count == 1:
            return TokenFeatures(are_vectors, (vectors_BSF,))
        zeroed = torch.where(are_vectors, vectors_BSF, 0.0)
        return TokenFeatures(are_vectors, split(zeroed, [width] * count, -1))


class TokenFeatures(NamedTuple):
    """Vectors at the tokens of a text.

    Attributes:
        are_vectors: bool `(B, S, 1)`; the tokens that have one.
        parts: `(B, S, E)` each, the first for the embeddings. Further ones are zero at other
            tokens.
    """

    are_vectors: Tensor
    parts: Sequence[Tensor]

    def placed(self, x_BSE: Tensor) -> Tensor:
        """The embeddings `(B, S, E)` with the vectors in their places."""
        return torch.where(self.are_vectors, self.parts[0], x_BSE)


class JoinedStates(nn.Module):
    """Joins the embedding of each token with a state: `projection([norm(embedding), norm(state)])`.

    DeepSeek-AI 2024 (arXiv:2412.19437), equation 21.
    """

    def __init__(self, config: NormConfig, width: int) -> None:
        super().__init__()
        self.embedding_norm = norm(config, width)
        self.state_norm = norm(config, width)
        self.projection = nn.Linear(2 * width, width, bias=False)

    def forward(self, x_BSE: Tensor, states_BSE: Tensor) -> Tensor:
        """Embeddings and states, `(B, S, E)` each, to `(B, S, E)`."""
        both = (self.embedding_norm(x_BSE), self.state_norm(states_BSE.to(x_BSE.dtype)))
        out: Tensor = self.projection(torch.cat(both, -1))
        return out


def input_embedding(config: EncoderConfig) -> nn.Module:
    """Embedding of an encoder's input."""
    match config.input:
        case PatchInput() as patches:
            return PatchEmbedding(patches, config.embedding_width)
        case GridInput() as grid:
            return FlatPatchEmbedding(grid, config.embedding_width)
        case AudioInput() as audio:
            return AudioEmbedding(audio, config.embedding_width)
        case ChunkedAudioInput() as chunked:
            return ChunkedAudioEmbedding(chunked, config.embedding_width)
        case WaveInput() as wave:
            return WaveEmbedding(wave, config.embedding_width)
        case tokens:
            return nn.Embedding(tokens.vocab_size, config.embedding_width)


def registers(config: EncoderConfig) -> Registers | None:
    """Trained vectors without positions; None without them."""
    match config.input:
        case PatchInput(registers=count) as patches if count:
            return Registers(patches, config.hidden_size)
        case _:
            return None


def position_embedding(config: StackConfig) -> nn.Embedding | None:
    """Learned table of positions; None if the positions are not learned."""
    match config.positions:
        case (
            LearnedPositions(offset=offset, spare=spare)
            | RelativeBiasPositions(absolute=LearnedPositions(offset=offset, spare=spare))
        ):
            return nn.Embedding(offset + config.places + spare, config.embedding_width)
        case GridPositions(side=side):
            return GridEmbedding(side**2, config.embedding_width)
        case _:
            return None


def position_convolution(config: StackConfig) -> PositionConvolution | None:
    """Convolution that gives positions; None if the positions are of another kind."""
    match config.positions:
        case ConvolutionalPositions() as positions:
            return PositionConvolution(positions, config.embedding_width)
        case _:
            return None
