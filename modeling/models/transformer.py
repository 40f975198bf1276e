"""The models: decoders, encoders, and an encoder with a decoder.

Shape letters: B batch, S new tokens, T tokens of a source or of an encoder's text, E model width,
V vocabulary, N requested positions.
"""

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageModelHead,
    ModelConfig,
    RecurrentConfig,
    TokenInput,
)
from ortolan.modeling.layers.attention import CrossAttention
from ortolan.modeling.layers.cache import (
    CrossCache,
    LayerCache,
    Memory,
    StepLengths,
    capacity_of,
    same,
)
from ortolan.modeling.layers.embeddings import input_embedding
from ortolan.modeling.layers.heads import DenseLayer, LanguageModel, encoder_head
from ortolan.modeling.layers.ops import select
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.recurrent import RecurrentModel
from ortolan.modeling.models.stack import Stack
from ortolan.modeling.weights import EMBEDDING, HEAD


class DecoderModel(Stack):
    """A language model, alone or after an encoder.

    `module(ids)` gives the logits of whole texts; `step` continues texts after a cache and is
    what `export` traces.

    Args:
        config: its parts.
        embedding: a table that it shares; one of its own by default.
    """

    config: DecoderConfig
    embedding: nn.Embedding

    def __init__(self, config: DecoderConfig, embedding: nn.Embedding | None = None) -> None:
        super().__init__(
            config, embedding or nn.Embedding(config.vocab_size, config.embedding_width)
        )
        self.head_layer = (
            DenseLayer(config.head_layer, config.hidden_size)
            if config.head_layer
            else nn.Identity()
        )
        self.head: nn.Linear | None = (
            None
            if config.tied_head
            else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.head_bias: nn.Parameter | None = (
            nn.Parameter(torch.zeros(config.vocab_size)) if config.head_bias else None
        )

    @property
    def tied(self) -> dict[str, str]:
        """The head, where it is the embedding's table."""
        return {HEAD: EMBEDDING} if self.head is None else {}

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits of whole texts: int64 `(B, S)` to `(B, S, V)`."""
        return self.with_source(None, input_ids)

    def with_source(self, source: CrossCache | None, input_ids: Tensor) -> Tensor:
        """Logits of whole texts, given their sources: int64 `(B, S)` to `(B, S, V)`."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        x_BSE = self.embed(input_ids, positions)
        relative = self.relative(positions, input_ids.shape[1])
        lengths = None if source is None else source.lengths
        layers = zip(self.layers, self._states(source), strict=True)
        for number, (block, states) in enumerate(layers):
            rotary = self.rotary(number)
            x_BSE = block(x_BSE, rotary, relative, source=states, source_lengths=lengths)
        return self.logits(x_BSE)

    def step(
        self,
        input_ids: Tensor,
        step: StepLengths,
        cache: Sequence[Memory],
        logit_positions: Tensor | None = None,
        source: CrossCache | None = None,
    ) -> tuple[Tensor, list[Memory]]:
        """Continue texts.

        Args:
            input_ids: int64 `(B, S)`; right padded where every layer is attention, others would
                remember the padding.
            step: lengths after this step.
            cache: what each layer carries; see `empty_cache` and `cached_attention`.
            logit_positions: int64 `(B, N)`, indices into this step's S tokens; None for all.
            source: what to attend to, for a decoder that does.

        Returns:
            Logits `(B, N, V)`, and what each layer carries after the step.
        """
        positions = step.positions(input_ids.shape[1])
        x_BSE = self.embed(input_ids, positions)
        relative = self.relative(positions, step.reach(capacity_of(cache)))
        lengths = None if source is None else source.lengths
        pick = same if logit_positions is None else partial(select, positions_BN=logit_positions)
        present = []
        layers = zip(self.layers, cache, self._states(source), strict=True)
        for number, (block, past, states) in enumerate(layers):
            x_BSE, extended = block.step(
                x_BSE,
                self.rotary(number),
                past,
                step,
                relative,
                source=states,
                source_lengths=lengths,
                # After the keys and values of the last layer, only these tokens are needed.
                pick=pick if number == len(self.config.blocks) - 1 else same,
            )
            present.append(extended)
        return self.logits(x_BSE), present

    def logits(self, x_BSE: Tensor) -> Tensor:
        """The stream that leaves the blocks, `(B, S, E)`, to logits `(B, S, V)`."""
        return self.project(self.final_norm(x_BSE))

    def project(self, x_BSE: Tensor) -> Tensor:
        """The normed stream, `(B, S, E)`, to logits `(B, S, V)`."""
        head = self.embedding if self.head is None else self.head
        x_BSE = self.head_layer(x_BSE)
        if self.config.head_scale != 1.0:
            x_BSE = x_BSE * self.config.head_scale
        logits_BSV = F.linear(x_BSE, head.weight, self.head_bias)
        cap = self.config.final_softcap
        return logits_BSV if cap is None else cap * torch.tanh(logits_BSV / cap)

    def _states(self, source: CrossCache | None) -> Sequence[LayerCache | None]:
        """The keys and values of the source for each layer."""
        return [None] * len(self.config.blocks) if source is None else source.layers


class EncoderModel(Stack):
    """Texts or images to a vector for each token, or to the output of its head.

    Args:
        config: its parts.
        embedding: a table that it shares; a layer of its own by default.
    """

    config: EncoderConfig

    def __init__(self, config: EncoderConfig, embedding: nn.Embedding | None = None) -> None:
        super().__init__(config, embedding or input_embedding(config))
        self.type_embedding: nn.Embedding | None = None
        match config.input:
            case TokenInput(types=types) if types:
                self.type_embedding = nn.Embedding(types, config.embedding_width)
        self.head = encoder_head(config)

    @property
    def tied(self) -> dict[str, str]:
        """The head, where it is the embedding's table."""
        match self.config.head:
            case LanguageModelHead(tied=True):
                return {HEAD: EMBEDDING}
            case _:
                return {}

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """The output of the head for whole texts or images.

        Args:
            inputs: int64 ids `(B, T)`, right padded, or pixels `(B, channels, height, width)`.
            lengths: int `(B,)`; valid tokens of each row, at least one; None where all are.
            types: int64 `(B, T)`; the type of each token; 0 by default.

        Returns:
            `(B, T, V)` from a language model's head, `(B, labels)` from a classifier,
            `(B, E)` from an embedding, `(B, T, E)` without a head. Positions of padding hold
            no meaning.
        """
        x_BTE = self.states(inputs, lengths, types)
        match self.head:
            case None:
                return x_BTE
            case LanguageModel() as language_model:
                embedding = self.embedding
                table = embedding.weight if isinstance(embedding, nn.Embedding) else None
                logits: Tensor = language_model(x_BTE, table)
                return logits
            case pooled:
                out: Tensor = pooled(x_BTE, lengths)
                return out

    def states(
        self, inputs: Tensor, lengths: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """The vectors of every token, `(B, T, E)`, before the head; see `forward`."""
        added: Tensor | None = None
        if self.type_embedding is not None:
            first = self.type_embedding.weight[:1][None]
            added = first if types is None else self.type_embedding(types)
        length = self._length(inputs)
        positions = torch.arange(length, device=inputs.device)[None]
        x_BTE = self.embed(inputs, positions, added)
        relatives = self.relatives(positions, length, x_BTE.dtype)
        for number, (block, relative) in enumerate(zip(self.layers, relatives, strict=True)):
            x_BTE = block(x_BTE, self.rotary(number), relative, lengths=lengths)
        out: Tensor = self.final_norm(x_BTE)
        return out

    def _length(self, inputs: Tensor) -> int:
        """Vectors that each row becomes."""
        match self.config.input:
            case TokenInput():
                return inputs.shape[1]
            case patches:
                return patches.length


class EncoderDecoderModel(TransformerModel):
    """An encoder of the source, and a decoder that attends to it.

    `module(source_ids, ids)` gives the logits of whole texts. To continue texts, `encode` and
    `cross` run once for a source, and `step` at every step.
    """

    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        decoder = config.decoder
        # First, so that its weight goes by this name.
        self.shared: nn.Embedding | None = (
            nn.Embedding(decoder.vocab_size, decoder.embedding_width)
            if config.shared_embedding
            else None
        )
        self.encoder = EncoderModel(config.encoder, self.shared)
        self.decoder = DecoderModel(decoder, self.shared)

    @property
    def tied(self) -> dict[str, str]:
        """The embeddings where they are one table, and the head where it is that too."""
        shared = "shared.weight"
        ours = {f"decoder.{name}": f"decoder.{same}" for name, same in self.decoder.tied.items()}
        if self.shared is None:
            return ours
        return {
            "encoder.embedding.weight": shared,
            "decoder.embedding.weight": shared,
            **dict.fromkeys(ours, shared),
        }

    def forward(self, inputs: Tensor, input_ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Logits of whole texts, given whole sources (teacher forcing).

        Args:
            inputs: of the encoder, `(B, T)`, right padded.
            input_ids: int64 `(B, S)`; of the decoder, its start token first.
            lengths: int `(B,)`; valid tokens of each source, at least one; None where all are.

        Returns:
            `(B, S, V)`.
        """
        return self.decoder.with_source(self.source(inputs, lengths), input_ids)

    def source(self, inputs: Tensor, lengths: Tensor | None = None) -> CrossCache:
        """All that the decoder needs of sources `(B, T)`: `encode`, then `cross`."""
        return CrossCache(self.cross(self.encode(inputs, lengths)), lengths)

    def encode(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The vectors of sources `(B, T)`, as `(B, T, E)`."""
        return self.encoder.states(inputs, lengths)

    def cross(self, states_BTE: Tensor) -> list[LayerCache]:
        """Keys and values of an encoded source for every layer of the decoder."""
        return [
            cast(CrossAttention, block.cross_attention).states(states_BTE)
            for block in self.decoder.layers
        ]

    def step(
        self,
        input_ids: Tensor,
        step: StepLengths,
        cache: Sequence[Memory],
        source: CrossCache,
        logit_positions: Tensor | None = None,
    ) -> tuple[Tensor, list[Memory]]:
        """Continue texts, given their sources; see `DecoderModel.step`."""
        return self.decoder.step(input_ids, step, cache, logit_positions, source)


def build(config: ModelConfig) -> TransformerModel:
    """The model that a config describes, with random weights.

    Raises:
        TypeError: not the config of a model.
    """
    match config:
        case DecoderConfig():
            return DecoderModel(config)
        case EncoderConfig():
            return EncoderModel(config)
        case EncoderDecoderConfig():
            return EncoderDecoderModel(config)
        case RecurrentConfig():
            return RecurrentModel(config)
        case _:
            raise TypeError(f"expected the config of a model, got {type(config).__name__}")
