"""The encoder and the decoder of a model, of which it has at least one.

The one place of the export that tells the classes of configs apart: what a kind of model needs
follows from its sides.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ortolan.modeling.config import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ModelConfig,
    PatchInput,
    StackConfig,
    TokenInput,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """One side, or both.

    Attributes:
        encoder: of texts or images.
        decoder: of texts, by itself or after the encoder.
    """

    encoder: EncoderConfig | None = None
    decoder: DecoderConfig | None = None

    @property
    def kind(self) -> str:
        """The kind of such a model in a manifest."""
        return "-".join(name for name, side in self._named.items() if side is not None)

    @property
    def stacks(self) -> Mapping[str, StackConfig]:
        """Each side, in the order in which they run, by the prefix of the names of its weights."""
        both = self.encoder is not None and self.decoder is not None
        return {
            f"{name}." if both else "": side
            for name, side in self._named.items()
            if side is not None
        }

    @property
    def patches(self) -> PatchInput | None:
        """The input of an encoder of images."""
        given = None if self.encoder is None else self.encoder.input
        return given if isinstance(given, PatchInput) else None

    @property
    def vocab_size(self) -> int:
        """Ids of the decoder, or of the encoder's texts; 1 for images."""
        return self.source_vocab_size if self.decoder is None else self.decoder.vocab_size

    @property
    def source_vocab_size(self) -> int:
        """Ids of the encoder's texts; as `vocab_size` where there are none."""
        given = None if self.encoder is None else self.encoder.input
        if isinstance(given, TokenInput):
            return given.vocab_size
        return 1 if self.decoder is None else self.decoder.vocab_size

    @property
    def context_length(self) -> int:
        """Tokens of the decoder, or of the encoder; for images, the vectors that one becomes."""
        side = self.decoder or self.encoder
        return 0 if side is None else side.context_length

    @property
    def _named(self) -> Mapping[str, StackConfig | None]:
        return {"encoder": self.encoder, "decoder": self.decoder}


def sides_of(config: ModelConfig) -> Sides:
    """The sides of a model.

    Raises:
        TypeError: models of this class cannot be exported.
    """
    match config:
        case DecoderConfig():
            return Sides(decoder=config)
        case EncoderConfig():
            return Sides(encoder=config)
        case EncoderDecoderConfig(encoder=encoder, decoder=decoder):
            return Sides(encoder=encoder, decoder=decoder)
        case _:
            raise TypeError(f"expected the config of a model, got {type(config).__name__}")
