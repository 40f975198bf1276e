"""Experts as checkpoints store them, and as the model does."""

import pytest
import torch
from torch import Tensor

from ortolan.modeling.checkpoint.mapped_weights import MappedWeights, map_weights
from ortolan.modeling.errors import WeightError
from ortolan.modeling.weights import Table, Target

N, R, E = 3, 4, 5

GATE_UP, DOWN, BIAS = (f"blocks.1.experts.{name}" for name in ("gate_up", "down", "gate_up_bias"))

SHAPES = {GATE_UP: (N, 2 * R, E), DOWN: (N, E, R), BIAS: (N, 2 * R)}

GATES, UPS, DOWNS = torch.randn(N, R, E), torch.randn(N, R, E), torch.randn(N, E, R)

GATE_BIAS, UP_BIAS = torch.randn(N, R), torch.randn(N, R)

APART: Table = {
    "layers.{}.experts.{}.gate.weight": Target("blocks.{}.experts.gate_up"),
    "layers.{}.experts.{}.up.weight": Target("blocks.{}.experts.gate_up"),
    "layers.{}.experts.{}.down.weight": Target("blocks.{}.experts.down"),
    "layers.{}.experts.{}.gate.bias": Target("blocks.{}.experts.gate_up_bias"),
    "layers.{}.experts.{}.up.bias": Target("blocks.{}.experts.gate_up_bias"),
}

HALVES: Table = {
    "layers.{}.input": Target("blocks.{}.experts.gate_up", halves=True),
    "layers.{}.output": Target("blocks.{}.experts.down"),
    "layers.{}.bias": Target("blocks.{}.experts.gate_up_bias", halves=True),
}

TURNED: Table = {
    "layers.{}.gate_up": Target("blocks.{}.experts.gate_up", transposed=True),
    "layers.{}.down": Target("blocks.{}.experts.down", transposed=True),
    "layers.{}.bias": Target("blocks.{}.experts.gate_up_bias"),
}


def in_turn(gate: Tensor, up: Tensor) -> Tensor:
    return torch.stack((gate, up), 2).flatten(1, 2)


OURS = {GATE_UP: in_turn(GATES, UPS), DOWN: DOWNS, BIAS: in_turn(GATE_BIAS, UP_BIAS)}


def apart() -> dict[str, Tensor]:
    return {
        f"layers.1.experts.{number}.{name}": tensor[number]
        for name, tensor in (
            ("gate.weight", GATES),
            ("up.weight", UPS),
            ("down.weight", DOWNS),
            ("gate.bias", GATE_BIAS),
            ("up.bias", UP_BIAS),
        )
        for number in range(N)
    }


STORED = {
    "apart": (APART, apart()),
    "halves": (
        HALVES,
        {
            "layers.1.input": torch.cat((GATES, UPS), 1),
            "layers.1.output": DOWNS,
            "layers.1.bias": torch.cat((GATE_BIAS, UP_BIAS), 1),
        },
    ),
    "turned": (
        TURNED,
        {
            "layers.1.gate_up": OURS[GATE_UP].mT.contiguous(),
            "layers.1.down": DOWNS.mT.contiguous(),
            "layers.1.bias": OURS[BIAS],
        },
    ),
}


class Tensors:
    """Tensors in memory that count the elements read."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.read_elements = 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        piece = self.tensors[name].narrow(axis, start, stop - start)
        self.read_elements += piece.numel()
        return piece


def mapped(table: Table, source: Tensors) -> MappedWeights:
    return map_weights(source, table, SHAPES, {}, base_model_prefix="model", tied={})


@pytest.mark.parametrize("name", STORED)
def test_experts_are_stacked_with_alternating_gate_and_up_rows(name: str) -> None:
    table, tensors = STORED[name]
    weights = mapped(table, Tensors(tensors))
    for ours, expected in OURS.items():
        assert torch.equal(weights.rows(ours, 0, N), expected)
        assert torch.equal(weights.rows(ours, 1, 2), expected[1:2])


@pytest.mark.parametrize("name", STORED)
def test_one_expert_is_read_without_the_others(name: str) -> None:
    table, tensors = STORED[name]
    source = Tensors(tensors)
    mapped(table, source).rows(GATE_UP, 2, 3)
    assert source.read_elements == 2 * R * E


def test_an_expert_that_is_missing_or_misshapen_is_named() -> None:
    tensors = apart()
    del tensors["layers.1.experts.2.up.weight"]
    tensors["layers.1.experts.0.down.weight"] = torch.zeros(R, E)
    with pytest.raises(WeightError, match="2 differences") as raised:
        mapped(APART, Tensors(tensors))
    assert "missing layers.1.experts.2.up.weight" in str(raised.value)
    assert "layers.1.experts.0.down.weight: expected shape (5, 4), got (4, 5)" in str(raised.value)


def test_a_surplus_expert_is_unexpected() -> None:
    tensors = apart() | {"layers.1.experts.3.down.weight": DOWNS[0]}
    with pytest.raises(WeightError, match=r"unexpected layers\.1\.experts\.3\.down\.weight"):
        mapped(APART, Tensors(tensors))
