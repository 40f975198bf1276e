"""A recurrent network as data: cells, and what they may look back at."""

from dataclasses import dataclass
from typing import Literal

from ortolan.modeling.config.model import ModelConfig
from ortolan.modeling.errors import ConfigError

CellKind = Literal["rnn", "gru", "lstm", "feed_forward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditiveAttentionConfig:
    """Attention of each state to those of the text so far, its own included.

    The score of two states is `v . tanh(W query + U key)` (Bahdanau et al. 2015).

    Attributes:
        width: channels of `v`.
    """

    width: int

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(
                f"attention: expected a width of at least 1, got {self.width}. "
                "Check attention_size."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """The memory of a Neural Turing Machine (Graves et al. 2014), and its heads.

    Attributes:
        slots: N.
        width: numbers in a slot, M.
        read_heads: how many heads read at every step.
        write_heads: how many erase and add.
        shift_range: how far a head may move in a step, to either side.
    """

    slots: int
    width: int
    read_heads: int = 1
    write_heads: int = 1
    shift_range: int = 1

    @property
    def heads(self) -> int:
        """All of them: those that read come first."""
        return self.read_heads + self.write_heads

    @property
    def read_width(self) -> int:
        """Numbers that are read in a step."""
        return self.read_heads * self.width

    def __post_init__(self) -> None:
        counts = self.slots, self.width, self.read_heads, self.write_heads, self.shift_range
        if min(counts) < 1 or 2 * self.shift_range >= self.slots:
            raise ConfigError(
                "memory: expected slots, their width, heads of both kinds, and a shift_range of "
                f"less than half of the slots, got {counts}. Correct them."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """A language model that carries a state of a fixed size from token to token.

    Attributes:
        hidden_size: channels of the embedding and of every cell.
        vocab_size: ids.
        context_length: tokens that are meant to fit; only attention needs room for them.
        cell: of every layer; `feed_forward` remembers nothing, and needs a memory.
        num_layers: cells, each above the other.
        attention: to the states of the last layer so far; None for none.
        memory: which the cells control; None for none.
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
                "recurrent: expected a width, tokens, a context and layers, got "
                f"{self.hidden_size}, {self.vocab_size}, {self.context_length} and "
                f"{self.num_layers}. Correct config.json."
            )
        if self.attention is not None and self.memory is not None:
            raise ConfigError(
                "recurrent: expected attention or a memory, got both. Leave one of them out."
            )
        if self.cell == "feed_forward" and self.memory is None:
            raise ConfigError(
                "cell: expected rnn, gru or lstm where there is no memory, got feed_forward, "
                "which remembers nothing. Choose another, or give it a memory."
            )
