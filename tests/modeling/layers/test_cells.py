"""Recurrent cells against those of torch.nn with the same parameters."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ortolan.modeling.config import CellKind
from ortolan.modeling.layers.cells import FeedForwardCell, RecurrentCell, cell_of

B, S, INPUTS, H = 3, 7, 5, 6

REFERENCES: dict[CellKind, Callable[..., nn.RNNBase]] = {
    "rnn": nn.RNN,
    "gru": nn.GRU,
    "lstm": nn.LSTM,
}


def cell_and_reference(kind: CellKind) -> tuple[RecurrentCell, nn.RNNBase]:
    torch.manual_seed(0)
    reference = REFERENCES[kind](INPUTS, H, batch_first=True)
    cell = RecurrentCell(kind, INPUTS, H)
    state = {name.removesuffix("_l0"): tensor for name, tensor in reference.state_dict().items()}
    cell.load_state_dict(state)
    return cell, reference


@pytest.mark.parametrize("kind", REFERENCES)
def test_a_cell_equals_torch(kind: CellKind) -> None:
    cell, reference = cell_and_reference(kind)
    x, states = torch.randn(B, S, INPUTS), tuple(torch.randn(B, H) for _ in cell.states)
    out, after = cell(x, states)
    inputs = tuple(state[None] for state in states)
    expected, last = reference(x, inputs if kind == "lstm" else inputs[0])
    torch.testing.assert_close(out, expected)
    for mine, theirs in zip(after, last if kind == "lstm" else (last,), strict=True):
        torch.testing.assert_close(mine, theirs[0])


@pytest.mark.parametrize("kind", REFERENCES)
def test_gradients_equal_torch(kind: CellKind) -> None:
    cell, reference = cell_and_reference(kind)
    x = torch.randn(B, S, INPUTS)
    cell(x, tuple(torch.zeros(B, H) for _ in cell.states))[0].square().sum().backward()
    reference(x)[0].square().sum().backward()
    for name, parameter in cell.named_parameters():
        torch.testing.assert_close(parameter.grad, reference.get_parameter(f"{name}_l0").grad)


def test_a_feed_forward_cell_has_no_state() -> None:
    cell = cell_of("feed_forward", INPUTS, H)
    assert isinstance(cell, FeedForwardCell)
    x = torch.randn(B, INPUTS)
    out, states = cell.step(x, ())
    torch.testing.assert_close(out, torch.tanh(x @ cell.weight.T + cell.bias))
    assert states == cell.states == ()
