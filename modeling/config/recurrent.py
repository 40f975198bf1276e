"""A recurrent network as data: its cells, and their attention or memory."""

from dataclasses import dataclass
from typing import Literal

from ortolan.modeling.config.base import Config, ModelConfig, Size
from ortolan.modeling.errors import ConfigError

CellKind = Literal["rnn", "gru", "lstm", "feed_forward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig(Config):
    """The memory of a Neural Turing Machine (Graves et al. 2014), and its heads."""

    slots: Size  # N in the paper
    width: Size  # numbers in a slot, M in the paper
    read_heads: Size = 1
    write_heads: Size = 1  # heads that erase and add
    shift_range: Size = 1  # slots that a head can move in a step, to either side

    @property
    def heads(self) -> int:
        """Number of heads; those that read come first."""
        return self.read_heads + self.write_heads

    @property
    def read_width(self) -> int:
        """Numbers read in a step."""
        return self.read_heads * self.width

    def _check(self) -> None:
        if 2 * self.shift_range >= self.slots:
            raise ConfigError(
                f"memory: shift_range must be below half of the {self.slots} slots (got "
                f"{self.shift_range}). Correct one of them."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """A recurrent language model.

    Attributes:
        hidden_size: channels of the embedding and of every cell.
        context_length: most tokens of a sequence; only attention needs room for them.
        cell: kind of every cell; `feed_forward` remembers nothing, and needs a memory.
        attention_size: channels of `v` in the scores `v . tanh(W query + U key)` of attention to
            the states of the last layer so far (Bahdanau et al. 2015); None without attention.
        tied_head: the head is the embedding's table.
    """

    hidden_size: Size
    vocab_size: Size
    context_length: Size
    cell: CellKind
    num_layers: Size = 1
    attention_size: Size | None = None
    memory: MemoryConfig | None = None
    tied_head: bool = False

    def _check(self) -> None:
        if self.attention_size is not None and self.memory is not None:
            raise ConfigError(
                "recurrent: attention and memory exclude each other. Leave one of them out."
            )
        if self.cell == "feed_forward" and self.memory is None:
            raise ConfigError(
                "cell: feed_forward needs a memory. Add one, or choose rnn, gru or lstm."
            )
