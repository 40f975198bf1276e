"""The encoder and the decoder of a config, which has at least one of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from ortolan.modeling.config import (
    AudioInput,
    ChunkedAudioInput,
    CtcHead,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    GridInput,
    ModelConfig,
    PatchInput,
    StackConfig,
    TokenInput,
    WaveInput,
)
from ortolan.modeling.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """An encoder, a decoder, or both.

    Attributes:
        encoder: reads texts, images or sounds.
        decoder: writes tokens, alone or after an encoder.
    """

    encoder: EncoderConfig | None = None
    decoder: DecoderConfig | None = None

    @property
    def kind(self) -> str:
        """The kind of model in the manifest."""
        return "-".join(name for name, side in self._named.items() if side is not None)

    @property
    def stacks(self) -> Mapping[str, StackConfig]:
        """The sides in the order in which they run, by the prefix of their weights' names."""
        both = self.encoder is not None and self.decoder is not None
        return {
            f"{name}." if both else "": side
            for name, side in self._named.items()
            if side is not None
        }

    @property
    def media(
        self,
    ) -> PatchInput | GridInput | AudioInput | ChunkedAudioInput | WaveInput | None:
        """The input of an encoder of images or sounds."""
        source = None if self.encoder is None else self.encoder.input
        return None if isinstance(source, TokenInput) else source

    @property
    def vocab_size(self) -> int:
        """Vocabulary of the decoder, or of an encoder alone; 1 for images.

        With a CTC head, the number of symbols.
        """
        match self.encoder:
            case EncoderConfig(head=CtcHead(size=size)):
                return size
        return self.source_vocab_size if self.decoder is None else self.decoder.vocab_size

    @property
    def source_vocab_size(self) -> int:
        """Vocabulary of the encoder; `vocab_size` if it reads no tokens."""
        source = None if self.encoder is None else self.encoder.input
        if isinstance(source, TokenInput):
            return source.vocab_size
        return 1 if self.decoder is None else self.decoder.vocab_size

    @property
    def context_length(self) -> int:
        """Context of the decoder, or of an encoder alone; for images, the vectors of one image."""
        side = self.decoder or self.encoder
        return 0 if side is None else side.context_length

    @property
    def outputs(self) -> int:
        """Context of the decoder, or most vectors of an encoder alone."""
        return self.encoder.vectors if self.encoder and not self.decoder else self.context_length

    @property
    def _named(self) -> Mapping[str, StackConfig | None]:
        return {"encoder": self.encoder, "decoder": self.decoder}


def sides_of(config: ModelConfig) -> Sides:
    """The sides of a model."""
    match config:
        case EncoderConfig(input=AudioInput()):
            raise ConfigError(
                f"{config.model_type}: an encoder of sounds can only be exported with its decoder. "
                "Export the EncoderDecoderModel."
            )
        case DecoderConfig():
            return Sides(decoder=config)
        case EncoderConfig():
            return Sides(encoder=config)
        case EncoderDecoderConfig(encoder=encoder, decoder=decoder):
            return Sides(encoder=encoder, decoder=decoder)
        case _:
            raise TypeError(f"expected the config of a model, got {type(config).__name__}")
