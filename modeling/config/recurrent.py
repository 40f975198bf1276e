"""A recurrent network as data: its cells, and their attention or memory."""

from dataclasses import dataclass
from typing import Literal

from ortolan.modeling.config.base import ModelConfig
from ortolan.modeling.errors import ConfigError

CellKind = Literal["rnn", "gru", "lstm", "feed_forward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditiveAttentionConfig:
    """Attention of each state to all states so far, including itself.

    The score of two states is `v . tanh(W query + U key)` (Bahdanau et al. 2015).

    Attributes:
        width: channels of `v`.
    """

    width: int

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(
                f"attention: width must be at least 1 (got {self.width}). Check attention_size."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """The memory of a Neural Turing Machine (Graves et al. 2014), and its heads.

    Attributes:
        slots: number of slots, N.
        width: numbers in a slot, M.
        read_heads: number of heads that read.
        write_heads: number of heads that erase and add.
        shift_range: slots that a head can move in a step, to either side.
    """

    slots: int
    width: int
    read_heads: int = 1
    write_heads: int = 1
    shift_range: int = 1

    @property
    def heads(self) -> int:
        """Number of heads; those that read come first."""
        return self.read_heads + self.write_heads

    @property
    def read_width(self) -> int:
        """Numbers read in a step."""
        return self.read_heads * self.width

    def __post_init__(self) -> None:
        counts = self.slots, self.width, self.read_heads, self.write_heads, self.shift_range
        if min(counts) < 1 or 2 * self.shift_range >= self.slots:
            raise ConfigError(
                "memory: slots, width, read_heads, write_heads and shift_range must be at least 1, "
                f"and shift_range below half of the slots (got {counts}). Correct them."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """A recurrent language model.

    Attributes:
        hidden_size: channels of the embedding and of every cell.
        context_length: most tokens of a sequence; only attention needs room for them.
        cell: kind of every cell; `feed_forward` remembers nothing, and needs a memory.
        num_layers: number of stacked cells.
        attention: to the states of the last layer so far.
        memory: controlled by the cells.
        tied_head: the head is the embedding's table.
    """

    hidden_size: int
    vocab_size: int
    context_length: int
    cell: CellKind
    num_layers: int = 1
    attention: AdditiveAttentionConfig | None = None
    memory: MemoryConfig | None = None
    tied_head: bool = False

    def __post_init__(self) -> None:
        if min(self.hidden_size, self.vocab_size, self.context_length, self.num_layers) < 1:
            raise ConfigError(
                "recurrent: hidden_size, vocab_size, context_length and num_layers must be at "
                f"least 1 (got {self.hidden_size}, {self.vocab_size}, {self.context_length} and "
                f"{self.num_layers}). Correct config.json."
            )
        if self.attention is not None and self.memory is not None:
            raise ConfigError(
                "recurrent: attention and memory exclude each other. Leave one of them out."
            )
        if self.cell == "feed_forward" and self.memory is None:
            raise ConfigError(
                "cell: feed_forward needs a memory. Add one, or choose rnn, gru or lstm."
            )
