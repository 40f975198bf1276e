"""What goes into an encoder, as data: tokens, an image, a spectrogram or a wave."""

from dataclasses import dataclass
from functools import reduce
from typing import Literal

from ortolan.modeling.config.head import Activation, NormConfig
from ortolan.modeling.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInput:
    """Token ids, each with a type (such as the sentence of a pair) if there are `types`."""

    vocab_size: int
    types: int = 0

    def __post_init__(self) -> None:
        if self.vocab_size < 1 or self.types < 0:
            raise ConfigError(
                "input: vocab_size must be at least 1, and types at least 0 (got "
                f"{self.vocab_size} and {self.types}). Check vocab_size and type_vocab_size."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchInput:
    """An image cut into patches, each projected to a vector (Dosovitskiy et al. 2021).

    Attributes:
        image_size: height and width in pixels.
        patch_size: height and width in pixels; left-over pixels at the edges are ignored.
        channels: numbers per pixel.
        class_token: a trained vector comes before the patches.
        distillation_token: another one follows it (Touvron et al. 2021, "DeiT").
        bias: of the projection.
    """

    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    channels: int
    class_token: bool
    distillation_token: bool = False
    bias: bool = True

    @property
    def tokens(self) -> int:
        """Number of trained vectors before the patches."""
        return int(self.class_token) + int(self.distillation_token)

    @property
    def length(self) -> int:
        """Number of vectors for an image."""
        (height, width), (patch_height, patch_width) = self.image_size, self.patch_size
        return (height // patch_height) * (width // patch_width) + self.tokens

    def __post_init__(self) -> None:
        if not all(0 < p <= i for p, i in zip(self.patch_size, self.image_size, strict=True)):
            raise ConfigError(
                f"input: patches must fit into the image (got {self.patch_size} in "
                f"{self.image_size}). Check patch_size and image_size."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioInput:
    """A log-mel spectrogram, whose frames two convolutions join in pairs (Radford et al. 2023).

    Attributes:
        bins: mel frequencies per frame.
        frames: of every spectrogram.
    """

    bins: int
    frames: int

    @property
    def length(self) -> int:
        """Number of vectors for a spectrogram."""
        return self.frames // 2

    def __post_init__(self) -> None:
        if self.bins < 1 or self.frames < 2 or self.frames % 2:
            raise ConfigError(
                "input: a spectrogram needs mel bins and an even number of frames (got "
                f"{self.bins} and {self.frames}). Check num_mel_bins and max_source_positions."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveLayer:
    """A convolution over time.

    Attributes:
        channels: of its output.
        kernel: samples or frames that a frame of its output is computed from.
        stride: samples or frames from one of these to the next.
    """

    channels: int
    kernel: int
    stride: int

    def __post_init__(self) -> None:
        if min(self.channels, self.kernel, self.stride) < 1:
            raise ConfigError(
                "input: channels, kernel and stride of a convolution must be at least 1 (got "
                f"{self.channels}, {self.kernel} and {self.stride}). Check conv_dim, conv_kernel "
                "and conv_stride."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveInput:
    """A wave of any length, that convolutions turn into vectors (Baevski et al. 2020, "wav2vec 2").

    Attributes:
        layers: the convolutions, in order.
        norm: `time` normalizes every channel of the first convolution over time; `channels`
            normalizes every frame of every convolution over its channels.
        activation: of every convolution, after its norm.
        bias: of every convolution.
        projection_norm: norm of the last frames, before their projection to the stream.
    """

    layers: tuple[WaveLayer, ...]
    norm: Literal["time", "channels"]
    activation: Activation
    bias: bool = False
    projection_norm: NormConfig | None = None

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

    def __post_init__(self) -> None:
        if not self.layers:
            raise ConfigError("input: a wave needs at least one convolution. Check conv_dim.")
