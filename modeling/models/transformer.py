"""Decoders, encoders and encoder-decoders.

Shape letters: B batch, S new tokens, T tokens of a source or of an encoder's input, E model width,
V vocabulary, N selected positions.
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
    ModelConfig,
    RecurrentConfig,
)
from ortolan.modeling.layers.attention import CrossAttention
from ortolan.modeling.layers.cache import (
    CrossCache,
    LayerCache,
    Memory,
    Pick,
    StepLengths,
    capacity_of,
    same,
)
from ortolan.modeling.layers.embeddings import (
    Features,
    JoinedStates,
    TokenFeatures,
)
from ortolan.modeling.layers.ops import select
from ortolan.modeling.layers.scores import Relative
from ortolan.modeling.models.encoder import EncoderModel
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.models.recurrent import RecurrentModel
from ortolan.modeling.models.stack import Stack
from ortolan.modeling.weights import EMBEDDING, HEAD


class DecoderModel(Stack):
    """A language model, alone or after an encoder.

    `module(ids)` returns the logits of whole sequences. `step` continues sequences after a
    cache; it is what `export` traces.

    Args:
        config: parts of the model.
        embedding: an embedding to share; by default the model has its own.
    """

    config: DecoderConfig
    embedding: nn.Embedding

    def __init__(self, config: DecoderConfig, embedding: nn.Embedding | None = None) -> None:
        super().__init__(
            config, embedding or nn.Embedding(config.vocab_size, config.embedding_width)
        )
        self.joined_states = (
            JoinedStates(config.state_norm, config.hidden_size) if config.state_norm else None
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
        """The head, if it is tied to the embedding."""
        return {HEAD: EMBEDDING} if self.head is None else {}

    def forward(
        self,
        input_ids: Tensor,
        features: Features | None = None,
        previous_BSE: Tensor | None = None,
    ) -> Tensor:
        """Logits of whole sequences: int64 `(B, S)` to `(B, S, V)`.

        Args:
            input_ids: of the tokens.
            features: vectors that replace the embeddings of some tokens.
            previous_BSE: for a model with a `state_norm`, the state that comes with each token.
        """
        return self.project(self.states(input_ids, features=features, previous_BSE=previous_BSE))

    def with_source(self, source: CrossCache | None, input_ids: Tensor) -> Tensor:
        """Logits of whole sequences after their sources: int64 `(B, S)` to `(B, S, V)`."""
        return self.project(self.states(input_ids, source))

    def states(
        self,
        input_ids: Tensor,
        source: CrossCache | None = None,
        features: Features | None = None,
        previous_BSE: Tensor | None = None,
    ) -> Tensor:
        """The normalized stream of whole sequences, `(B, S, E)`; see `forward`."""
        return self.step_states(
            input_ids, source=source, features=features, previous_BSE=previous_BSE
        )[0]

    def step(
        self,
        input_ids: Tensor,
        step: StepLengths,
        cache: Sequence[Memory],
        logit_positions: Tensor | None = None,
        source: CrossCache | None = None,
        features: Features | None = None,
        previous_BSE: Tensor | None = None,
    ) -> tuple[Tensor, list[Memory]]:
        """Continue sequences.

        Args:
            input_ids: int64 `(B, S)`. Right padding is allowed only if every layer is attention;
                other mixers would carry it in their state.
            step: lengths after this step.
            cache: state of each layer; see `empty_cache` and `cached_attention`.
            logit_positions: int64 `(B, N)`, indices into this step's S tokens; None for all.
            source: keys and values of the source, for a decoder with cross-attention.
            features: vectors that replace the embeddings of some tokens.
            previous_BSE: see `forward`.

        Returns:
            Logits `(B, N, V)`, and the state of each layer after the step.
        """
        pick = same if logit_positions is None else partial(select, positions_BN=logit_positions)
        states, present = self.step_states(
            input_ids, step, cache, pick, source, features, previous_BSE
        )
        return self.project(states), present

    def step_states(
        self,
        input_ids: Tensor,
        step: StepLengths | None = None,
        cache: Sequence[Memory] = (),
        pick: Pick = same,
        source: CrossCache | None = None,
        features: Features | None = None,
        previous_BSE: Tensor | None = None,
    ) -> tuple[Tensor, list[Memory]]:
        """Continue sequences without the head; without a step, compute whole ones. See `step`.

        Returns:
            The normalized stream `(B, N, E)` of the tokens that `pick` selects, and the state of
            each layer after the step.
        """
        tokens, count = input_ids.shape[1], len(self.config.blocks)
        pasts: Sequence[Memory | None] = cache
        if step is None:
            positions = torch.arange(tokens, device=input_ids.device)[None]
            keys, pasts = tokens, [None] * count
        else:
            positions, keys = step.positions(tokens), step.reach(capacity_of(cache))
        vectors = None
        if features is not None:
            width, dtype = self.config.embedding_width, self.embedding.weight.dtype
            vectors = features.at_tokens(width, dtype)
        x_BSE = self._embed(input_ids, positions, vectors, previous_BSE)
        relative = self._reaching(self.relative(positions, keys), features, positions)
        angles = self.angles(None if features is None else features.positions)
        # For each block, the part of the vectors that is added to its output.
        parts = (block.feature_part for block in self.config.blocks)
        added = [vectors.parts[part] if vectors and part else None for part in parts]
        sources = [None] * count if source is None else source.layers
        present: list[Memory] = []
        layers = zip(self.layers, pasts, angles, added, sources, strict=True)
        for number, (block, past, rotary, part, states) in enumerate(layers):
            x_BSE, extended = block(
                x_BSE,
                rotary,
                relative,
                past=past,
                step=step,
                # In the last layer, the other tokens are only needed for their keys and values.
                pick=pick if number == count - 1 else same,
                source=states,
                source_lengths=None if source is None else source.lengths,
                added=part,
            )
            present.append(extended)
        return self.final_norm(x_BSE), present

    def project(self, x_BSE: Tensor) -> Tensor:
        """Logits `(B, S, V)` from the normalized stream, `(B, S, E)`."""
        head = self.embedding if self.head is None else self.head
        if self.config.head_scale != 1.0:
            x_BSE = x_BSE * self.config.head_scale
        logits_BSV = F.linear(x_BSE, head.weight, self.head_bias)
        cap = self.config.final_softcap
        return logits_BSV if cap is None else cap * torch.tanh(logits_BSV / cap)

    def _embed(
        self,
        input_ids: Tensor,
        positions: Tensor,
        features: TokenFeatures | None,
        previous_BSE: Tensor | None,
    ) -> Tensor:
        """Input of the first block, `(B, S, E)`."""
        x_BSE = self.embed(input_ids, positions, features=features)
        if (self.joined_states is None) != (previous_BSE is None):
            raise TypeError("a decoder needs previous states if and only if it has a state_norm")
        if self.joined_states is None or previous_BSE is None:
            return x_BSE
        out: Tensor = self.joined_states(x_BSE, previous_BSE)
        return out

    def _reaching(
        self, relative: Relative | None, features: Features | None, positions: Tensor
    ) -> Relative | None:
        """The relative positions, with what adjacent vectors see of each other."""
        # A graph of vectors that see each other is rewritten (export/passes/both_ways.py).
        if torch.onnx.is_in_onnx_export() or self.config.feature_attention == "causal":
            return relative
        if features is None:
            return relative
        return (relative or Relative())._replace(reach=features.reach(positions))


class EncoderDecoderModel(TransformerModel):
    """An encoder, and a decoder with attention to it.

    `module(source_ids, ids)` returns the logits of whole sequences. To continue sequences,
    `encode` and `cross` run once per source, and `step` runs at every step.
    """

    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        decoder = config.decoder
        # Created first, so that the shared weight is registered under this name.
        self.shared: nn.Embedding | None = (
            nn.Embedding(decoder.vocab_size, decoder.embedding_width)
            if config.shared_embedding
            else None
        )
        self.encoder = EncoderModel(config.encoder, self.shared)
        self.decoder = DecoderModel(decoder, self.shared)

    @property
    def tied(self) -> dict[str, str]:
        """Embeddings that are one table, and the head if it is tied to it."""
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
        """Logits of whole sequences after whole sources (teacher forcing).

        Args:
            inputs: encoder input, `(B, T)`, right padded.
            input_ids: decoder input, int64 `(B, S)`, its start token first.
            lengths: int `(B,)`; valid tokens per source, at least 1; None if all are valid.

        Returns:
            `(B, S, V)`.
        """
        return self.decoder.with_source(self.source(inputs, lengths), input_ids)

    def source(self, inputs: Tensor, lengths: Tensor | None = None) -> CrossCache:
        """Encode sources `(B, T)` for the decoder: `encode`, then `cross`."""
        return CrossCache(self.cross(self.encode(inputs, lengths)), lengths)

    def encode(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode sources `(B, T)` to vectors `(B, T, E)`."""
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
        """Continue sequences after their sources; see `DecoderModel.step`."""
        return self.decoder.step(input_ids, step, cache, logit_positions, source)


def build(config: ModelConfig) -> TransformerModel:
    """Build the model of a config, with random weights."""
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
            raise TypeError(f"{type(config).__name__} is not the config of a model")
