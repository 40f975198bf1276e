"""A transformer as data.

`DecoderConfig` defines what a decoder computes, `EncoderConfig` what an encoder computes, and
`EncoderDecoderConfig` joins one of each. A family (Llama, T5, ...) reads a published config as one
of these; nothing else in Ortolan knows a family's name. New behaviour is a new value of a field.
"""

from dataclasses import dataclass, fields, replace
from typing import Self, get_args

from ortolan.modeling.config.base import ModelConfig, Size, Some
from ortolan.modeling.config.block import AttentionConfig, BlockConfig, Mixer
from ortolan.modeling.config.head import (
    ClassifierHead,
    CtcHead,
    EmbeddingHead,
    FeatureHead,
    Head,
    LanguageModelHead,
    NormConfig,
)
from ortolan.modeling.config.inputs import (
    AudioInput,
    ChunkedAudioInput,
    GridInput,
    PatchInput,
    TokenInput,
    WaveInput,
)
from ortolan.modeling.config.positions import (
    AlibiPositions,
    ConvolutionalPositions,
    GridPositions,
    LearnedPositions,
    NoPositions,
    Positions,
    RelativePositions,
    RotaryPositions,
    TablePositions,
)
from ortolan.modeling.errors import ConfigError

POSITIONS: dict[type, tuple[type, ...]] = {
    # The graph of a wave does not count its vectors.
    WaveInput: (ConvolutionalPositions, RotaryPositions),
    # The graph of a grid does not know its sides.
    GridInput: (GridPositions, NoPositions),
}

OTHER_POSITIONS = (
    NoPositions,
    *get_args(TablePositions),
    RotaryPositions,
    *get_args(RelativePositions),
)
"""Positions by kind of input; a convolution would read the padding of other inputs."""

HEADS: dict[type, tuple[type, ...]] = {
    TokenInput: (LanguageModelHead, ClassifierHead, EmbeddingHead),
    WaveInput: (CtcHead,),
}

OTHER_HEADS = (ClassifierHead, EmbeddingHead, FeatureHead)
"""Heads by kind of input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackConfig(ModelConfig):
    """Blocks, their embeddings and their final norm, in encoders and decoders alike.

    Attributes:
        context_length: most tokens of a sequence; rows of every position table.
        final_norm: the norm before the head; None if the blocks end in one.
        embedding_scale: multiplies the token embeddings, not the position embeddings.
        embedding_norm: norm of the input of the first block, positions included.
        embedding_dim: channels of the embeddings and of their norm, which a matrix projects to
            the stream; None if they are as wide as the stream.
        shared_block: all layers share their weights.
    """

    hidden_size: Size
    context_length: Size
    positions: Positions
    blocks: Some[BlockConfig]
    final_norm: NormConfig | None
    embedding_scale: float = 1.0
    embedding_norm: NormConfig | None = None
    embedding_dim: Size | None = None
    shared_block: bool = False

    @property
    def embedding_width(self) -> int:
        """Channels of the embeddings."""
        return self.hidden_size if self.embedding_dim is None else self.embedding_dim

    @property
    def places(self) -> int:
        """Number of tokens with a position: rows of a learned table, apart from an offset."""
        return self.context_length

    def rotary_of(self, mixer: Mixer) -> RotaryPositions | None:
        """The rotary positions of a layer: its own, or the stack's."""
        if not isinstance(mixer, AttentionConfig):
            return None
        positions = mixer.rotary or self.positions
        return positions if isinstance(positions, RotaryPositions) else None

    @property
    def attentions(self) -> tuple[AttentionConfig, ...]:
        """The attention of each layer that has it."""
        mixers = (block.mixer for block in self.blocks)
        return tuple(mixer for mixer in mixers if isinstance(mixer, AttentionConfig))

    @property
    def rotaries(self) -> tuple[RotaryPositions, ...]:
        """The different rotary positions of the layers, in order."""
        of_layers = (self.rotary_of(block.mixer) for block in self.blocks)
        return tuple(dict.fromkeys(rotary for rotary in of_layers if rotary))

    @property
    def has_axes(self) -> bool:
        """Whether a token has a position on each of several axes."""
        return any(rotary.reads_axes for rotary in self.rotaries)

    @property
    def switches_after(self) -> int | None:
        """The length beyond which the published angles of some layer change."""
        lengths = (rotary.switches_after for rotary in self.rotaries)
        return min((length for length in lengths if length is not None), default=None)

    def _check(self) -> None:
        if self.shared_block and len(set(self.blocks)) > 1:
            raise ConfigError(
                "blocks: layers that share their weights must have one config. Correct "
                "shared_block."
            )
        _check_positions(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(StackConfig):
    """A decoder: a language model, alone or after an encoder.

    Attributes:
        tied_head: the head is the embedding's table.
        head_bias: the logits are biased.
        head_scale: multiplies the input of the head.
        final_softcap: logits become `final_softcap * tanh(logits / final_softcap)`; None for
            plain logits.
        state_norm: norm of embeddings and of states, where each token comes with a state of the
            model that this one predicts further tokens for; a matrix projects both to the stream
            (DeepSeek-AI 2024, "MTP"). None to read embeddings alone.
        gives_states: its graphs also return the normalized stream of every token.
    """

    vocab_size: Size
    tied_head: bool
    head_bias: bool = False
    head_scale: float = 1.0
    final_softcap: float | None = None
    state_norm: NormConfig | None = None
    gives_states: bool = False

    @property
    def feature_width(self) -> int:
        """Numbers of a vector that replaces an embedding, with the parts for later layers."""
        parts = 1 + max(block.feature_part for block in self.blocks)
        return parts * self.embedding_width

    def _check(self) -> None:
        StackConfig._check(self)
        if not all(attention.causal for attention in self.attentions):
            raise ConfigError(
                "blocks: every layer of a decoder must be causal. Make it an encoder."
            )
        if self.tied_head and self.embedding_width != self.hidden_size:
            raise ConfigError(
                f"tied_head: the embedding must have the {self.hidden_size} channels of the stream "
                f"(got {self.embedding_width}). Set it to False."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(StackConfig):
    """A stack without a cache, for sequences, images or sounds.

    Attributes:
        head: None to return one vector per token.
    """

    input: TokenInput | PatchInput | GridInput | AudioInput | ChunkedAudioInput | WaveInput
    head: Head | None = None

    @property
    def registers(self) -> int:
        """Number of trained vectors without positions."""
        return self.input.registers if isinstance(self.input, PatchInput) else 0

    @property
    def places(self) -> int:
        """Number of vectors with a position."""
        return self.context_length - self.registers

    @property
    def is_resizable(self) -> bool:
        """Whether the positions follow from those of images of another size."""
        match self.positions:
            case LearnedPositions(published=table):
                return table is not None
            case RotaryPositions(centers=centers):
                return centers
            case _:
                return False

    def resized(self, height: int, width: int) -> Self:
        """The same encoder for images of another size, if it is resizable.

        Raises:
            ConfigError: the image is smaller than a patch.
        """
        if not isinstance(self.input, PatchInput) or not self.is_resizable:
            raise TypeError("expected an encoder of images whose positions can be resized")
        image = replace(self.input, image_size=(height, width))
        return replace(self, input=image, context_length=image.length)

    @property
    def vectors(self) -> int:
        """Most vectors that the head gives for a sequence, or those for an image."""
        if not isinstance(self.head, FeatureHead):
            return self.context_length
        return (self.context_length - self.head.skipped) // self.head.square**2

    def _check(self) -> None:
        StackConfig._check(self)
        if any(block.cross_attention for block in self.blocks):
            raise ConfigError("blocks: an encoder has no source for cross-attention. Leave it out.")
        if len(self.attentions) < len(self.blocks):
            raise ConfigError(
                "blocks: every layer of an encoder needs attention: other mixers would remember "
                "the padding of shorter sequences."
            )
        self._check_input()
        if isinstance(self.head, FeatureHead):
            self._check_features(self.head)

    def _check_input(self) -> None:
        """Raise ConfigError unless the positions, the length and the head fit the input."""
        source, width = self.input, self.embedding_width
        for part, kinds, others in (
            (self.positions, POSITIONS, OTHER_POSITIONS),
            (self.head, HEADS, OTHER_HEADS),
        ):
            fitting = kinds.get(type(source), others)
            if not isinstance(part, fitting) and part is not None:
                raise ConfigError(
                    f"{type(source).__name__} cannot have {type(part).__name__}. Choose one of "
                    f"{', '.join(kind.__name__ for kind in fitting)}."
                )
        match source:
            case PatchInput() | AudioInput() | ChunkedAudioInput() if (
                self.context_length != source.length
            ):
                raise ConfigError(
                    f"context_length: must be {source.length}, the vectors of an image or a sound "
                    f"(got {self.context_length}). Correct it."
                )
            case GridInput(merge=side) if self.context_length % side**2:
                raise ConfigError(
                    f"context_length: must be whole squares of {side} by {side} patches (got "
                    f"{self.context_length}). Correct it."
                )
            case WaveInput(projection=False, layers=(*_, last)) if last.channels != width:
                raise ConfigError(
                    "input: the last convolution of a wave without a projection must have the "
                    f"{width} channels of the stream (got {last.channels}). Correct it."
                )
        match self.head:
            case EmbeddingHead(end=end) if end is not None and not isinstance(source, TokenInput):
                raise ConfigError("head: only a text has an end token. Set end to None.")
            case LanguageModelHead(tied=True, layer=layer):
                before = layer.width if layer and layer.width else self.hidden_size
                if before != width:
                    raise ConfigError(
                        f"head: a tied head needs an input of the {width} channels of the "
                        f"embedding (got {before}). Set tied to False."
                    )

    def _check_features(self, head: FeatureHead) -> None:
        """Raise ConfigError unless squares of patches and early layers are those of the model."""
        if [*head.early] != sorted({*head.early} & {*range(1, len(self.blocks) + 1)}):
            raise ConfigError(
                f"head: early layers must be from 1 to {len(self.blocks)}, in order (got "
                f"{[*head.early]}). Check deepstack_visual_indexes."
            )
        if self.vectors < 1:
            raise ConfigError("head: at least one vector must be left. Correct skipped.")
        side = head.square
        match self.input:
            case GridInput(merge=merge):  # in its own proportions, so no squares are averaged
                squares = f"squares of {merge} by {merge} that are joined, and no other vectors"
                fits = (head.pixel_shuffle, head.average, head.skipped) == (merge, 1, 0)
            case PatchInput(grid=(rows, columns), tokens=tokens):
                squares = f"{rows} by {columns} patches after {tokens} other vectors"
                fits = head.skipped == tokens and rows % side == columns % side == 0
            case _:
                squares, fits = "none", False
        if side > 1 and not fits:
            raise ConfigError(
                f"head: squares of {side} by {side} patches must fit the input (got {squares}). "
                "Check scale_factor, downsample_ratio or mm_tokens_per_image."
            )


def as_encoder(
    config: DecoderConfig, *, causal: bool = True, head: Head | None = None
) -> EncoderConfig:
    """The blocks of a language model as an encoder, with another head."""
    shared = {field.name: getattr(config, field.name) for field in fields(StackConfig)}
    blocks = tuple(
        replace(block, mixer=replace(block.attention, causal=causal)) for block in config.blocks
    )
    source = TokenInput(vocab_size=config.vocab_size)
    return EncoderConfig(**shared | {"blocks": blocks}, input=source, head=head)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoderConfig(ModelConfig):
    """An encoder of the source, and a decoder that attends to it (Vaswani et al. 2017).

    Attributes:
        shared_embedding: both have the same table.
        decoder_start_token_id: the first token of the decoder's sequence.
    """

    encoder: EncoderConfig
    decoder: DecoderConfig
    shared_embedding: bool
    decoder_start_token_id: int

    def _check(self) -> None:
        widths = self.encoder.hidden_size, self.decoder.hidden_size
        if widths[0] != widths[1] or self.encoder.head is not None:
            raise ConfigError(
                f"encoder: must have the decoder's width of {widths[1]} and no head (got a width "
                f"of {widths[0]}). Correct it."
            )
        crosses = [block.cross_attention for block in self.decoder.blocks]
        if any(cross is None or cross.causal for cross in crosses):
            raise ConfigError(
                "decoder: every layer needs cross-attention to all of the source. Give each block "
                "a cross_attention that is not causal."
            )
        match self.encoder.input:
            case TokenInput(vocab_size=size) if size == self.decoder.vocab_size:
                return
            case source if self.shared_embedding:
                raise ConfigError(
                    f"shared_embedding: the encoder must have {self.decoder.vocab_size} tokens, as "
                    f"the decoder (got {getattr(source, 'vocab_size', 'none')}). Set it to False."
                )


def _check_positions(config: StackConfig) -> None:
    """Raise ConfigError unless the positions fit every layer."""
    layers = config.attentions
    source = config.input if isinstance(config, EncoderConfig) else None
    if not isinstance(source, PatchInput) and any(r.centers for r in config.rotaries):
        raise ConfigError("positions: only images have centers of patches. Choose others.")
    for attention in layers:
        rotary = config.rotary_of(attention)
        if rotary and (rotary.dim % 2 or not 0 < rotary.dim <= attention.head_dim):
            raise ConfigError(
                "positions: rotated channels must be an even number up to the "
                f"{attention.head_dim} of a head (got {rotary.dim}). "
                "Check partial_rotary_factor and head_dim."
            )
    if not isinstance(config.positions, RelativePositions):
        return
    shapes = {(attention.num_heads, attention.causal) for attention in layers}
    if any(attention.rotary for attention in layers) or len(shapes) != 1:
        raise ConfigError(
            "positions: layers that share biases of distances must have the same number of heads, "
            "be all causal or none, and have no positions of their own. Choose other positions."
        )
    match config.positions:
        case AlibiPositions(rounded=True) if not layers[0].causal:
            raise ConfigError("positions: rounded needs causal attention. Set it to False.")
