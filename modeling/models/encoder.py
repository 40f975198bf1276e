"""Encoders of sequences, images and sounds.

Shape letters: B batch, T tokens, E model width, V vocabulary, J patches of a square, M squares.
"""

import torch
from torch import Tensor, nn

from ortolan.modeling.config import (
    ChunkedAudioInput,
    EmbeddingHead,
    EncoderConfig,
    FeatureHead,
    GridInput,
    LanguageModelHead,
    TokenInput,
    WaveInput,
)
from ortolan.modeling.config.positions import added_table
from ortolan.modeling.layers.embeddings import input_embedding, registers
from ortolan.modeling.layers.grid import Grid, GridEmbedding
from ortolan.modeling.layers.heads import (
    Embedder,
    Features,
    LanguageModel,
    encoder_head,
    lengths_to_end,
)
from ortolan.modeling.models.stack import Stack
from ortolan.modeling.weights import EMBEDDING, HEAD


class EncoderModel(Stack):
    """An encoder of sequences, images or sounds: one vector per token, or the output of its head.

    Args:
        config: parts of the model.
        embedding: an embedding to share; by default the model has its own.
    """

    config: EncoderConfig

    def __init__(self, config: EncoderConfig, embedding: nn.Embedding | None = None) -> None:
        super().__init__(config, embedding or input_embedding(config))
        self.type_embedding: nn.Embedding | None = None
        match config.input:
            case TokenInput(types=types) if types:
                self.type_embedding = nn.Embedding(types, config.embedding_width)
        self.registers = registers(config)
        self.head = encoder_head(config)

    @property
    def tied(self) -> dict[str, str]:
        """The head, if it is tied to the embedding."""
        match self.config.head:
            case LanguageModelHead(tied=True):
                return {HEAD: EMBEDDING}
            case _:
                return {}

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        types: Tensor | None = None,
        grid: Grid | None = None,
    ) -> Tensor:
        """Output of the head for whole sequences, images or sounds.

        Args:
            inputs: int64 ids `(B, T)`, right padded, pixels `(B, channels, height, width)`,
                the flat patches of one image `(M, J, numbers)`, spectrograms `(B, bins, frames)`,
                the chunks of one `(chunks, bins, frames)`, or waves of one length `(B, samples)`.
            lengths: int `(B,)`; valid tokens per row, at least 1; None if all are valid.
            types: int64 `(B, T)`; token types; 0 by default.
            grid: places of flat patches in the table of positions.

        Returns:
            `(B, T, V)` for the head of a language model or of CTC, `(B, labels)` for a classifier,
            `(B, T, labels)` for one of tokens, `(B, E)` for an embedding, `(B, T, E)` without a
            head. Positions of padding are undefined.
        """
        x_BTE, early = self._encoded(inputs, lengths, types, grid)
        match self.head:
            case None:
                return x_BTE
            case Features() as features if early:
                return features.joined(x_BTE, early)
            case LanguageModel() as language_model:
                embedding = self.embedding
                table = embedding.weight if isinstance(embedding, nn.Embedding) else None
                logits: Tensor = language_model(x_BTE, table)
                return logits
            case Embedder(config=EmbeddingHead(end=end)) as embedder if end is not None:
                vectors: Tensor = embedder(x_BTE, lengths_to_end(inputs, lengths, end))
                return vectors
            case pooled:
                out: Tensor = pooled(x_BTE, lengths)
                return out

    def states(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        types: Tensor | None = None,
        grid: Grid | None = None,
    ) -> Tensor:
        """Vectors of all tokens before the head, `(B, T, E)`; see `forward`."""
        return self._encoded(inputs, lengths, types, grid)[0]

    def _encoded(
        self,
        inputs: Tensor,
        lengths: Tensor | None,
        types: Tensor | None,
        grid: Grid | None,
    ) -> tuple[Tensor, list[Tensor]]:
        """`states`, and the outputs of the early layers that the head reads."""
        added: Tensor | None = None
        if self.type_embedding is not None:
            first = self.type_embedding.weight[:1][None]
            added = first if types is None else self.type_embedding(types)
        if isinstance(self.position_embedding, GridEmbedding):
            if grid is None:
                raise TypeError("an encoder of flat patches needs their places: pass grid")
            added = self.position_embedding(grid)
        length = self._length(inputs)
        positions = torch.arange(length, device=inputs.device)[None]
        source = added_table(self.config.positions)
        if source is None or source.padding is None:
            rows = positions
        else:
            # in float32, which counts exactly, since more kernels do it
            counted = (inputs != source.padding).float()
            rows = (counted.cumsum(1) * counted - 1).long()
        x_BTE = self.embed(inputs, rows, added)
        if self.registers is not None:
            x_BTE, length = self.registers(x_BTE), length + self.config.registers
            positions = torch.arange(length, device=inputs.device)[None]
        if isinstance(self.config.input, ChunkedAudioInput | GridInput):
            # attention sees all chunks of a sound, or all patches of an image
            x_BTE = x_BTE.reshape(1, -1, x_BTE.shape[-1])
        relatives = self.relatives(positions, length, x_BTE.dtype)
        angles = self.angles(None if grid is None else grid.flat_positions())
        layers = zip(self.layers, angles, relatives, strict=True)
        read = self.config.head.early if isinstance(self.config.head, FeatureHead) else ()
        early = []
        for number, (block, rotary, relative) in enumerate(layers, 1):
            x_BTE, _ = block(x_BTE, rotary, relative, lengths=lengths)
            if number in read:
                early.append(x_BTE)
        return self.final_norm(x_BTE), early

    def _length(self, inputs: Tensor) -> int:
        """Number of vectors with a position per row, or per chunk of a sound."""
        match self.config.input:
            case TokenInput():
                return inputs.shape[1]
            case ChunkedAudioInput(chunk_vectors=vectors):
                return vectors
            case GridInput():
                return inputs.shape[0] * inputs.shape[1]
            case WaveInput(window=window, hop=hop):
                return (inputs.shape[1] - window) // hop + 1
            case _:
                return self.config.places
