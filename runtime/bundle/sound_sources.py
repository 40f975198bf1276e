"""Sources that are sounds."""

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec import Meta

from ortolan.runtime import limits
from ortolan.runtime.bundle.field_types import Record
from ortolan.runtime.bundle.source import (
    LENGTHS,
    MEL,
    SAMPLE_TOKENS,
    WAVE,
    AnySource,
    Feeds,
    Problems,
    Values,
    ramp,
)

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import Manifest
    from ortolan.runtime.bundle.parts import Features


class _Sounds(AnySource, Record, frozen=True, kw_only=True):
    """Sounds of any kind; `rate` is in samples per second."""

    medium = "sounds"

    rate: Annotated[int, Meta(ge=limits.MIN_AUDIO_RATE, le=limits.MAX_AUDIO_RATE)]

    @property
    def samples(self) -> int:
        """Most samples that the encoder reads at once."""
        raise NotImplementedError

    @property
    def seconds(self) -> float:
        """Longest sound that the encoder reads at once."""
        return self.samples / self.rate

    @property
    def words(self) -> str:
        return f"sounds of at most {self.seconds:g} seconds"


class AudioSource(_Sounds, frozen=True, kw_only=True, tag_field="kind", tag="audio"):
    """Sounds as input of an encoder, as log-mel spectrograms.

    Attributes:
        window: samples of a frame.
        hop: samples from one frame to the next.
        bins: mel frequencies per frame.
        frames: of a spectrogram.
        vectors: that the encoder makes of a spectrogram.
        highest: frequency in Hz at which the last filter ends.
    """

    is_fixed = True

    window: Annotated[int, Meta(ge=2, le=limits.MAX_AUDIO_WINDOW)]
    hop: Annotated[int, Meta(ge=1, le=limits.MAX_AUDIO_WINDOW)]
    bins: Annotated[int, Meta(ge=1, le=limits.MAX_AUDIO_BINS)]
    frames: Annotated[int, Meta(ge=2, le=limits.MAX_CONTEXT)]
    vectors: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    highest: Annotated[float, Meta(gt=0)] = 8000.0

    @property
    def samples(self) -> int:
        """Samples of a spectrogram."""
        return self.frames * self.hop

    @property
    def most_vectors(self) -> int:
        return self.vectors

    @property
    def step_s(self) -> float:
        """Seconds from one vector to the next."""
        return self.seconds / self.vectors

    def inputs(self) -> Values:
        return {MEL: ("float32", ("batch", self.bins, self.frames))}

    def sample(self, vocab_size: int) -> Feeds:
        return {MEL: ramp(1, self.bins, self.frames)}

    def count(self, value: Any) -> int:
        return self.vectors

    def problems(self, manifest: "Manifest") -> Problems:
        if not manifest.model_kind.has_decoder:
            yield "a decoder after an encoder of spectrograms", f"kind {manifest.kind!r}"


class WaveSource(_Sounds, frozen=True, kw_only=True, tag_field="kind", tag="wave"):
    """Sounds as input of an encoder, as waves of any length, each computed on its own.

    Attributes:
        window: samples that a vector is computed from.
        hop: samples from one vector to the next.
        vectors: most vectors that the encoder makes of a wave; longer ones are cut.
        normalized: whether the samples of a wave get a mean of 0 and a variance of 1.
    """

    is_alone = True

    window: Annotated[int, Meta(ge=1, le=limits.MAX_AUDIO_WINDOW)]
    hop: Annotated[int, Meta(ge=1, le=limits.MAX_AUDIO_WINDOW)]
    vectors: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    normalized: bool

    @property
    def samples(self) -> int:
        """Most samples of a wave."""
        return self.vectors * self.hop

    @property
    def most_vectors(self) -> int:
        return self.vectors

    @property
    def step_s(self) -> float:
        """Seconds from one vector to the next."""
        return self.hop / self.rate

    def length(self, samples: int) -> int:
        """Vectors that the encoder makes of a wave."""
        return max(0, (samples - self.window) // self.hop + 1)

    def reach(self, vectors: int) -> int:
        """Samples that the first vectors of a wave are computed from."""
        return self.window + (vectors - 1) * self.hop

    def inputs(self) -> Values:
        return {WAVE: ("float32", ("batch", "samples"))}

    def sample(self, vocab_size: int) -> Feeds:
        return {WAVE: ramp(1, min(self.reach(SAMPLE_TOKENS), self.samples))}

    def count(self, value: Any) -> int:
        return self.length(len(value))

    def problems(self, manifest: "Manifest") -> Problems:
        stands_alone = not manifest.model_kind.has_decoder
        most = manifest.context_length if stands_alone else self.vectors
        if self.vectors != most or self.length(self.samples) < 1:
            yield (
                f"waves of up to {most} vectors, and of one at least",
                f"{self.vectors} of {self.hop} samples, and a window of {self.window}",
            )
        if self.seconds > limits.MAX_AUDIO_SECONDS:
            yield f"waves of at most {limits.MAX_AUDIO_SECONDS} seconds", f"{self.seconds:g}"
        if stands_alone and manifest.tokenizer is not None:
            yield "no tokenizer for an encoder of waves", manifest.tokenizer


class ChunkedSource(_Sounds, frozen=True, kw_only=True, tag_field="kind", tag="chunks"):
    """Sounds as input of an encoder, as log-mel spectrograms of whole chunks, each on its own.

    Frames after the end of a sound are zeros, and no vectors are made of them.

    Attributes:
        window: samples of a frame.
        hop: samples from one frame to the next.
        bins: mel frequencies per frame.
        frames: most frames of a spectrogram; longer sounds are cut.
        chunk: frames of a chunk, whose vectors depend on no other one before attention.
        stride: frames from one vector of a chunk to the next.
        shortest: samples up to which silence fills a sound.
        highest: frequency in Hz at which the last filter ends.
    """

    is_alone = True

    window: Annotated[int, Meta(ge=2, le=limits.MAX_AUDIO_WINDOW)]
    hop: Annotated[int, Meta(ge=1, le=limits.MAX_AUDIO_WINDOW)]
    bins: Annotated[int, Meta(ge=1, le=limits.MAX_AUDIO_BINS)]
    frames: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    chunk: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    stride: Annotated[int, Meta(ge=1, le=limits.MAX_CONTEXT)]
    shortest: Annotated[int, Meta(ge=0, le=limits.MAX_AUDIO_RATE)] = 0
    highest: Annotated[float, Meta(gt=0)] = 8000.0

    @property
    def vectors(self) -> int:
        """Most vectors that the encoder makes of a spectrogram."""
        return self.length(self.frames)

    @property
    def samples(self) -> int:
        """Most samples of a spectrogram."""
        return self.frames * self.hop

    @property
    def step_s(self) -> float:
        """Seconds from one vector to the next, on average."""
        return self.seconds / self.vectors

    def length(self, frames: int) -> int:
        """Vectors that the encoder makes of the first frames."""
        whole, rest = divmod(frames, self.chunk)
        return whole * -(-self.chunk // self.stride) - (-rest // self.stride)

    def reach(self, vectors: int) -> int:
        """Samples that the first vectors are computed from, apart from a window."""
        whole, rest = divmod(vectors, -(-self.chunk // self.stride))
        return (whole * self.chunk + rest * self.stride) * self.hop

    def inputs(self) -> Values:
        return {MEL: ("float32", ("chunks", self.bins, self.chunk)), LENGTHS: ("int32", (1,))}

    def sample(self, vocab_size: int) -> Feeds:
        lengths = np.array([2 * self.length(self.chunk) - 1], np.int32)
        return {MEL: ramp(2, self.bins, self.chunk), LENGTHS: lengths}

    def count(self, value: Any) -> int:
        return self.length(value.shape[1])

    def problems(self, manifest: "Manifest") -> Problems:
        if manifest.model_kind.has_decoder:
            yield "an encoder of chunks without a decoder", f"kind {manifest.kind!r}"
        if self.frames % self.chunk or self.vectors != manifest.context_length:
            yield (
                f"whole chunks with {manifest.context_length} vectors",
                f"{self.frames} frames in chunks of {self.chunk}, and {self.vectors} vectors",
            )
        if manifest.tokenizer is not None:
            yield "no tokenizer for an encoder of sounds", manifest.tokenizer

    def fits(self, features: "Features") -> bool:
        return features.positions == "sequence"
