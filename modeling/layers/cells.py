"""Recurrent cells with the parameters of `torch.nn.RNN`, `GRU` and `LSTM`, and their ONNX nodes.

Shape letters: B batch, S new tokens, I input width, H state width, G rows of all gates.

Sources: Elman 1990; Cho et al. 2014, with the reset after the product as in torch and cuDNN;
Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config.recurrent import CellKind
from ortolan.modeling.layers.nodes import split
from ortolan.modeling.layers.sizes import is_one

OPSET = 22

States = tuple[Tensor, ...]
"""States of a cell, `(B, H)` each; the first is its output."""


def _rnn(x_BG: Tensor, h_BG: Tensor, _: States) -> States:
    return (torch.tanh(x_BG + h_BG),)


def _gru(x_BG: Tensor, h_BG: Tensor, states: States) -> States:
    x_reset, x_update, x_new = x_BG.chunk(3, -1)
    h_reset, h_update, h_new = h_BG.chunk(3, -1)
    reset, update = torch.sigmoid(x_reset + h_reset), torch.sigmoid(x_update + h_update)
    new = torch.tanh(x_new + reset * h_new)
    return (new + update * (states[0] - new),)


def _lstm(x_BG: Tensor, h_BG: Tensor, states: States) -> States:
    take, forget, new, out = (x_BG + h_BG).chunk(4, -1)
    cell = torch.sigmoid(forget) * states[1] + torch.sigmoid(take) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(cell), cell


class _Kind(NamedTuple):
    """Definition of a cell.

    Attributes:
        states: names of its states.
        step: computes the new states from the products of the input and of the last output,
            `(B, G)` each.
        operator: ONNX operator that computes it.
        order: index of torch's gate for each gate of the operator.
    """

    states: tuple[str, ...]
    step: Callable[[Tensor, Tensor, States], States]
    operator: str
    order: tuple[int, ...]


_KINDS = {
    "rnn": _Kind(("hidden",), _rnn, "RNN", (0,)),
    # reset, update, new in torch; ONNX puts update before reset
    "gru": _Kind(("hidden",), _gru, "GRU", (1, 0, 2)),
    # take, forget, new, out in torch; ONNX has take, out, forget, new
    "lstm": _Kind(("hidden", "cell"), _lstm, "LSTM", (0, 3, 1, 2)),
}


class RecurrentCell(nn.Module):
    """One layer of a recurrent network; its matrices have the gates in torch's order."""

    def __init__(self, kind: CellKind, inputs: int, width: int) -> None:
        super().__init__()
        self.kind, self.inputs, self.width = _KINDS[kind], inputs, width
        rows = len(self.kind.order) * width
        self.states = self.kind.states
        self.weight_ih = nn.Parameter(torch.empty(rows, inputs))
        self.weight_hh = nn.Parameter(torch.empty(rows, width))
        self.bias_ih = nn.Parameter(torch.empty(rows))
        self.bias_hh = nn.Parameter(torch.empty(rows))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)

    def forward(self, x_BSI: Tensor, states: States) -> tuple[Tensor, States]:
        """Read several tokens: `(B, S, I)` to the outputs `(B, S, H)` and the new states.

        Becomes one node while `torch.onnx.export` traces.
        """
        if torch.onnx.is_in_onnx_export() and not is_one(x_BSI.shape[1]):
            return self._node(x_BSI, states)
        outputs = []
        for x_BG in F.linear(x_BSI, self.weight_ih, self.bias_ih).unbind(1):
            states = self._next(x_BG, states)
            outputs.append(states[0])
        return torch.stack(outputs, 1), states

    def step(self, x_BI: Tensor, states: States) -> tuple[Tensor, States]:
        """Read one token: `(B, I)` to the output `(B, H)` and the new states."""
        states = self._next(F.linear(x_BI, self.weight_ih, self.bias_ih), states)
        return states[0], states

    def _next(self, x_BG: Tensor, states: States) -> States:
        h_BG = F.linear(states[0], self.weight_hh, self.bias_hh)
        return self.kind.step(x_BG, h_BG, states)

    def _node(self, x_BSI: Tensor, states: States) -> tuple[Tensor, States]:
        """The node RNN-22, GRU-22 or LSTM-22.

        The graph itself reorders the gates, so that weights keep their names and shapes;
        onnxruntime folds this when it opens the graph. Its kernels support only the layout with
        time first.
        """
        batch, tokens, _ = x_BSI.shape
        parameters = self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
        of_input, of_state, *biases = map(self._in_order, parameters)
        # as in torch, the reset follows the product
        flags = {"linear_before_reset": 1} if self.kind.operator == "GRU" else {}
        out_S1BH, *after = torch.onnx.ops.symbolic_multi_out(
            self.kind.operator,
            (
                x_BSI.transpose(0, 1),
                of_input[None],
                of_state[None],
                torch.cat(biases)[None],
                None,  # all tokens of all rows
                *(state[None] for state in states),
            ),
            {"hidden_size": self.width, **flags},
            dtypes=[x_BSI.dtype] * (1 + len(states)),
            shapes=[(tokens, 1, batch, self.width), *[(1, batch, self.width)] * len(states)],
            version=OPSET,
        )
        return out_S1BH.squeeze(1).transpose(0, 1), tuple(state.squeeze(0) for state in after)

    def _in_order(self, weight: Tensor) -> Tensor:
        """Rows of a parameter with the gates in the order of the operator."""
        order = self.kind.order
        if len(order) == 1:
            return weight
        gates = split(weight, [self.width] * len(order), 0)
        return torch.cat([gates[place] for place in order])


class FeedForwardCell(nn.Linear):
    """A feed-forward layer without state: `tanh(W x + b)`."""

    states: tuple[str, ...] = ()

    def step(self, x_BI: Tensor, states: States) -> tuple[Tensor, States]:
        """Read one token: `(B, I)` to `(B, H)`; there are no states."""
        return torch.tanh(self(x_BI)), states


Cell = RecurrentCell | FeedForwardCell


def cell_of(kind: CellKind, inputs: int, width: int) -> Cell:
    """The cell of a kind; see `RecurrentCell`."""
    if kind == "feed_forward":
        return FeedForwardCell(inputs, width)
    return RecurrentCell(kind, inputs, width)
