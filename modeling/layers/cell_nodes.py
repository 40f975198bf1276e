"""The ONNX nodes that passes of recurrent cells over several tokens become in a trace.

ONNX has the gates of a cell in another order than torch. The graph says so by itself: it cuts the
weights, which keep their names and shapes, and joins the parts again. onnxruntime does that once,
when it opens the graph.

Their contracts: onnx, RNN-22, GRU-22 and LSTM-22; onnxruntime has them for time first alone.

Shape letters: B batch, S new tokens, I input width, H width of the state, G rows of all gates.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from ortolan.modeling.layers.lowering import split

OPSET = 22


class CellNode(NamedTuple):
    """How a node computes a cell of torch.

    Attributes:
        operator: of ONNX.
        order: which of torch's gates each of the node's is.
        flags: attributes besides the width.
    """

    operator: str
    order: tuple[int, ...]
    flags: Mapping[str, int] = MappingProxyType({})


NODES = {
    "rnn": CellNode("RNN", (0,)),
    # reset, update, new; the node has update before reset, and resets after the product if told to
    "gru": CellNode("GRU", (1, 0, 2), {"linear_before_reset": 1}),
    # take, forget, new, out; the node has take, out, forget, new
    "lstm": CellNode("LSTM", (0, 3, 1, 2)),
}
"""The node of each kind of cell."""


def pass_over(
    kind: str,
    x_BSI: Tensor,
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    states: Sequence[Tensor],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A pass of a cell over some tokens as one node.

    Args:
        kind: a key of `NODES`.
        x_BSI: what it reads.
        weights: of the input `(G, I)` and of the state `(G, H)`, and their biases `(G,)`.
        states: what the cell carries, `(B, H)` each.

    Returns:
        The output after each token, `(B, S, H)`, and the states after the last.
    """
    node, (batch, tokens, _) = NODES[kind], x_BSI.shape
    width = int(states[0].shape[-1])
    of_input, of_state, *biases = (_in_order(weight, width, node.order) for weight in weights)
    out_S1BH, *after = torch.onnx.ops.symbolic_multi_out(
        node.operator,
        (
            x_BSI.transpose(0, 1),
            of_input[None],
            of_state[None],
            torch.cat(biases)[None],
            None,  # all tokens of all rows
            *(state[None] for state in states),
        ),
        {"hidden_size": width, **node.flags},
        dtypes=[x_BSI.dtype] * (1 + len(states)),
        shapes=[(tokens, 1, batch, width), *[(1, batch, width)] * len(states)],
        version=OPSET,
    )
    return out_S1BH.squeeze(1).transpose(0, 1), tuple(state.squeeze(0) for state in after)


def _in_order(weight: Tensor, width: int, order: tuple[int, ...]) -> Tensor:
    if len(order) == 1:
        return weight
    gates = split(weight, [width] * len(order), 0)
    return torch.cat([gates[place] for place in order])
