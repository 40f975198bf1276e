"""Inputs of encoders, as data: tokens, images, spectrograms and waves."""

from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Literal

from ortolan.modeling.config.base import Bound, Config, Count, Size, Some
from ortolan.modeling.config.head import Activation, NormConfig
from ortolan.modeling.errors import ConfigError

CHUNK_STRIDE = 8
"""Frames from one vector of a chunk to the next: three convolutions with a stride of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInput(Config):
    """Token ids, each with a type (such as the sentence of a pair) if there are `types`.

    Attributes:
        padded: every text is filled with padding up to the context, and the padding is read like
            other tokens (Zhai et al. 2023, "SigLIP").
    """

    vocab_size: Size
    types: Count = 0
    reads_types: bool = True  # else every token has the first type
    padded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchInput(Config):
    """An image cut into patches, each projected to a vector (Dosovitskiy et al. 2021).

    Registers are further trained vectors before the patches, without positions (Darcet et al. 2024,
    "Vision Transformers Need Registers").
    """

    image_size: tuple[int, int]  # height and width in pixels
    patch_size: tuple[int, int]  # likewise; left-over pixels at the edges are ignored
    channels: Size  # numbers per pixel
    class_token: bool  # a trained vector comes before the patches
    distillation_token: bool = False  # another one follows it (Touvron et al. 2021, "DeiT")
    registers: Count = 0
    bias: bool = True  # of the projection

    @property
    def tokens(self) -> int:
        """Number of trained vectors before the patches."""
        return int(self.class_token) + int(self.distillation_token) + self.registers

    @property
    def grid(self) -> tuple[int, int]:
        """Number of rows and columns of patches."""
        (height, width), (patch_height, patch_width) = self.image_size, self.patch_size
        return height // patch_height, width // patch_width

    @property
    def length(self) -> int:
        """Number of vectors for an image."""
        rows, columns = self.grid
        return rows * columns + self.tokens

    def _check(self) -> None:
        if not all(0 < p <= i for p, i in zip(self.patch_size, self.image_size, strict=True)):
            raise ConfigError(
                f"input: patches must fit into the image (got {self.patch_size} in "
                f"{self.image_size}). Check patch_size and image_size."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GridInput(Config):
    """An image of any proportions as a grid of patches (Dehghani et al. 2023, "NaViT").

    The model reads one image at a time, as flat patches in an order that the caller chooses:
    squares of `merge` by `merge` patches row by row, and the patches of each square row by row.

    The axes of a flat patch are rows, columns and channels with `channels_last`, and channels,
    frames, rows and columns with `channels_first`.
    """

    patch_size: Size  # height and width in pixels
    channels: Size  # numbers per pixel
    frames: Size = 1  # images in time of a patch; a still image is repeated
    merge: Size = 1
    layout: Literal["channels_first", "channels_last"] = "channels_last"
    bias: bool = True  # of the projection

    @property
    def numbers(self) -> int:
        """Numbers of a flat patch."""
        return self.channels * self.frames * self.patch_size**2

    def _check(self) -> None:
        if self.layout == "channels_last" and self.frames > 1:
            raise ConfigError("input: several frames need the layout channels_first. Choose it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioInput(Config):
    """A log-mel spectrogram of `frames` frames, which two convolutions join in pairs.

    Source: Radford et al. 2023, "Whisper". `bins` are the mel frequencies of a frame.
    """

    bins: Size
    frames: Annotated[int, Bound("be an even number", lambda value: value > 0 and value % 2 == 0)]

    @property
    def length(self) -> int:
        """Number of vectors for a spectrogram."""
        return self.frames // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedAudioInput(Config):
    """A log-mel spectrogram of whole chunks, which convolutions shrink one by one (Qwen Team 2026).

    Three convolutions halve the bins and the frames of every chunk. A sound may end within its
    last chunk.
    """

    bins: Size  # mel frequencies per frame
    frames: Size  # of the longest spectrogram, which attention sees at once
    chunk: Size  # frames of a chunk
    channels: Size  # of the convolutions

    @property
    def chunk_vectors(self) -> int:
        """Number of vectors for a chunk."""
        return -(-self.chunk // CHUNK_STRIDE)

    @property
    def length(self) -> int:
        """Number of vectors for the longest spectrogram."""
        return self.frames // self.chunk * self.chunk_vectors

    @property
    def chunk_bins(self) -> int:
        """Number of bins that are left after the convolutions."""
        return -(-self.bins // CHUNK_STRIDE)

    def vectors(self, frames: int) -> int:
        """Number of vectors for the first frames of a spectrogram."""
        return frames // self.chunk * self.chunk_vectors - (-(frames % self.chunk) // CHUNK_STRIDE)

    def _check(self) -> None:
        if self.frames % self.chunk:
            raise ConfigError(
                f"input: frames must be whole chunks of {self.chunk} (got {self.frames}). Check "
                "n_window_infer."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveLayer(Config):
    """A convolution over time, `act(norm(conv(x)))`.

    The norm `time` is that of every channel over time, `channels` that of every frame over its
    channels, and `all` that of all channels and frames together.
    """

    channels: Size  # of its output
    kernel: Size  # samples or frames that a frame of its output is computed from
    stride: Size  # samples or frames from one of these to the next
    activation: Activation
    norm: Literal["time", "channels", "all"] | None = None
    norm_last: bool = False  # the norm follows the activation
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveInput(Config):
    """A wave of any length, that convolutions turn into vectors (Baevski et al. 2020, "wav2vec 2").

    Without a projection, the last frames are as wide as the stream.
    """

    layers: Some[WaveLayer]  # the convolutions, in order
    projection: bool = True
    projection_norm: NormConfig | None = None  # norm of the last frames, before their projection

    @property
    def hop(self) -> int:
        """Samples from one vector to the next."""
        return reduce(lambda hop, layer: hop * layer.stride, self.layers, 1)

    @property
    def window(self) -> int:
        """Samples that a vector is computed from."""
        return reduce(
            lambda size, layer: (size - 1) * layer.stride + layer.kernel, reversed(self.layers), 1
        )

    def _check(self) -> None:
        if self.projection_norm is not None and not self.projection:
            raise ConfigError("input: projection_norm needs a projection. Leave it out.")
