"""Recurrent language models: cells alone, with attention, or with a memory.

Shape letters: B batch, S new tokens, E width of the embedding and of every cell, V vocabulary,
N slots, M slot width, K memory heads, X width of the vectors read.
"""

from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config.recurrent import RecurrentConfig
from ortolan.modeling.layers.additive_attention import AdditiveAttention
from ortolan.modeling.layers.cells import Cell, RecurrentCell, States, cell_of
from ortolan.modeling.layers.memory import Memory, MemoryState
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.state import State
from ortolan.modeling.weights import EMBEDDING, HEAD

CONTENTS, WEIGHTS = "memory.contents", "memory.weights"
"""State names of a memory."""

KEYS, VALUES = "attention.keys", "attention.values"
"""State names of attention over past states."""


class RecurrentModel(TransformerModel):
    """A recurrent language model.

    `module(ids)` returns the logits of whole sequences; `module(ids, state)` continues them.
    """

    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        read = 0 if config.memory is None else config.memory.read_width
        seen = width if config.attention_size else read
        self.embedding = nn.Embedding(config.vocab_size, width)
        inputs = (width + read, *[width] * (config.num_layers - 1))
        self.cells = nn.ModuleList(cell_of(config.cell, size, width) for size in inputs)
        size = config.attention_size
        self.attention = AdditiveAttention(size, width) if size else None
        self.memory = Memory(config.memory, width) if config.memory else None
        self.join = nn.Linear(width + seen, width) if seen else None
        self.head = None if config.tied_head else nn.Linear(width, config.vocab_size, bias=False)

    @property
    def tied(self) -> dict[str, str]:
        """The head, if it is tied to the embedding."""
        return {HEAD: EMBEDDING} if self.head is None else {}

    @property
    def layers(self) -> Iterable[Cell]:
        """The cells in order."""
        return cast(Iterable[Cell], self.cells)

    def forward(self, input_ids: Tensor, state: State | None = None) -> Tensor:
        """Logits of the new tokens: int64 `(B, S)` to `(B, S, V)`.

        Args:
            input_ids: new tokens.
            state: state after the tokens before them; by default there are none.
        """
        state = State.whole() if state is None else state
        x_BSE = self.embedding(input_ids)
        if self.memory is None:
            x_BSE = self._run_cells(x_BSE, state)
        else:
            x_BSE = self._run_machine(self.memory, x_BSE, state)
        if self.attention is not None:
            x_BSE = torch.cat((x_BSE, self._look_back(self.attention, x_BSE, state)), -1)
        x_BSE = state.select(x_BSE)
        if self.join is not None:
            x_BSE = torch.tanh(self.join(x_BSE))
        table = self.embedding if self.head is None else self.head
        return F.linear(x_BSE, table.weight)

    def _run_cells(self, x_BSE: Tensor, state: State) -> Tensor:
        """Output of the last cell, `(B, S, E)`; each cell reads its whole input at once."""
        for number, cell in enumerate(cast(Iterable[RecurrentCell], self.cells)):
            x_BSE, after = cell(x_BSE, self._recall_cell(number, cell, x_BSE, state))
            _keep_cell(number, cell, after, state)
        return x_BSE

    def _run_machine(self, memory: Memory, x_BSE: Tensor, state: State) -> Tensor:
        """Output of the controller and the vectors read, `(B, S, E + X)`, token by token."""
        slots, width, heads = memory.config.slots, memory.config.width, memory.config.heads
        carried = [self._recall_cell(n, cell, x_BSE, state) for n, cell in enumerate(self.layers)]
        contents = state.recall(CONTENTS, (slots, width), x_BSE)
        weights = state.recall(WEIGHTS, (heads, slots), x_BSE)
        past = memory.begin(MemoryState(contents, weights))
        outputs = []
        for token_BE in state.tokens(x_BSE):
            x = torch.cat((token_BE, memory.read(past)), -1)
            for number, cell in enumerate(self.layers):
                x, carried[number] = cell.step(x, carried[number])
            read_BX, past = memory(x, past)
            outputs.append(torch.cat((x, read_BX), -1))
        for number, cell in enumerate(self.layers):
            _keep_cell(number, cell, carried[number], state)
        changes = memory.changes(past)
        state.keep(CONTENTS, changes.contents)
        state.keep(WEIGHTS, changes.weights)
        return torch.stack(outputs, 1)

    def _look_back(self, attention: AdditiveAttention, x_BSE: Tensor, state: State) -> Tensor:
        """Attend from each state to the states so far, `(B, S, E)`."""
        keys, mask = state.extend(KEYS, attention.key(x_BSE))
        values, _ = state.extend(VALUES, x_BSE)
        attended: Tensor = attention(x_BSE, keys, values, mask)
        return attended

    def _recall_cell(self, number: int, cell: Cell, like: Tensor, state: State) -> States:
        width = (self.config.hidden_size,)
        return tuple(state.recall(f"cells.{number}.{name}", width, like) for name in cell.states)


def _keep_cell(number: int, cell: Cell, states: States, state: State) -> None:
    for name, value in zip(cell.states, states, strict=True):
        state.keep(f"cells.{number}.{name}", value)
