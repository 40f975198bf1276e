"""Weight tables: rows in another order, experts, tensors of several weights, and back."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from ortolan.modeling.checkpoint.mapped_weights import MappedWeights, map_weights
from ortolan.modeling.errors import WeightError
from ortolan.modeling.weights import Rows, Table, Target, published_pieces

HEADS, WIDTH = 4, 3

QKV = "blocks.{}.attention.qkv.weight"
GATE, UP = "blocks.{}.feed_forward.gate.weight", "blocks.{}.feed_forward.up.weight"
NORM = "final_norm.weight"

HALVES = (((0, 1),), ((1, 2),))


@dataclass
class Tensors:
    """A checkpoint in memory that counts the elements read, and the most rows read at once."""

    tensors: dict[str, Tensor]
    elements: int = 0
    most_rows: int = 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        piece = self.tensors[name].narrow(axis, start, stop - start).clone()
        self.elements += piece.numel()
        self.most_rows = max(self.most_rows, stop - start)
        return piece


def numbered(rows: int, columns: int = 2) -> Tensor:
    """A matrix whose first column counts its rows."""
    return torch.arange(rows)[:, None] + torch.arange(columns) / 8


def mapped(
    tensors: dict[str, Tensor], table: Table, expected: Mapping[str, tuple[int, ...]]
) -> tuple[MappedWeights, Tensors]:
    source = Tensors(tensors)
    return map_weights(source, table, expected, {}, base_model_prefix="model", tied={}), source


def first_column(weights: MappedWeights, name: str, *, step: int) -> list[int]:
    """Published row numbers of a weight, read `step` rows at a time."""
    count = weights.shape(name)[0]
    parts = [weights.rows(name, i, min(i + step, count)) for i in range(0, count, step)]
    return torch.cat(parts)[:, 0].long().tolist()


LAYOUTS = {
    # Bloom, GPT-NeoX: query, key and value of each head, one after the other.
    "heads": (
        Rows(HEADS, 3, -1, ((0, 1), (1, 2), (2, 3))),
        torch.arange(3 * HEADS * WIDTH).view(HEADS, 3, WIDTH).transpose(0, 1).flatten(),
    ),
    # Falcon: the queries of a group, then its key and its value.
    "groups": (
        Rows(2, 4, -1, ((0, 2), (2, 3), (3, 4))),
        torch.cat([torch.arange(24).view(2, 4, 3)[:, i].flatten() for i in ([0, 1], [2], [3])]),
    ),
    # CodeGen: slices of queries, values and keys.
    "slices": (
        Rows(2, 3, -1, ((0, 1), (2, 3), (1, 2))),
        torch.arange(24).view(2, 3, 4)[:, [0, 2, 1]].transpose(0, 1).flatten(),
    ),
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("step", [1, 5, 100])
def test_rows_come_in_our_order(layout: str, step: int, transposed: bool) -> None:
    rows, order = LAYOUTS[layout]
    stored = numbered(len(order))
    table = {"model.{}.qkv": Target(QKV, transposed, rows=rows)}
    ours = QKV.format(0)
    weights, _ = mapped(
        {"model.0.qkv": stored.T if transposed else stored}, table, {ours: tuple(stored.shape)}
    )

    assert first_column(weights, ours, step=step) == order.tolist()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_are_stored_in_the_published_order(layout: str, transposed: bool) -> None:
    rows, order = LAYOUTS[layout]
    stored = numbered(len(order))
    (piece,) = published_pieces(
        {"model.{}.qkv": Target(QKV, transposed, rows=rows)}, QKV.format(0), (len(order),)
    )
    tensors: dict[str, Tensor] = {}

    piece.write(stored[order], tensors, torch.float32)

    torch.testing.assert_close(tensors["model.0.qkv"], stored.T if transposed else stored)


@pytest.mark.parametrize(
    ("groups", "width", "gate"),
    [(1, -1, [0, 1, 2, 3]), (-1, 1, [0, 2, 4, 6])],
    ids=["halves", "interleaved"],
)
def test_one_tensor_fills_two_weights(groups: int, width: int, gate: list[int]) -> None:
    halves = [Rows(groups, 2, width, half) for half in HALVES]
    table: Table = {
        "model.{}.gate_up": (Target(GATE, rows=halves[0]), Target(UP, rows=halves[1])),
    }
    ours = {GATE.format(7): (4, 2), UP.format(7): (4, 2)}
    stored = {"model.7.gate_up": numbered(8)}
    weights, _ = mapped(stored, table, ours)

    assert first_column(weights, GATE.format(7), step=3) == gate
    assert first_column(weights, UP.format(7), step=3) == sorted({*range(8)} - {*gate})

    back: dict[str, Tensor] = {}
    for name in ours:
        (piece,) = published_pieces(table, name, (4,))
        piece.write(weights.rows(name, 0, 4), back, torch.float32)
    torch.testing.assert_close(back, stored)


def test_few_rows_are_read_at_once() -> None:
    rows = Rows(64, 3, -1, ((0, 1), (1, 2), (2, 3)))
    ours = QKV.format(0)
    stored = numbered(64 * 3 * 20)
    weights, source = mapped(
        {"model.0.qkv": stored},
        {"model.{}.qkv": Target(QKV, rows=rows)},
        {ours: tuple(stored.shape)},
    )

    weights.rows(ours, 30, 130)

    assert source.most_rows == 20


def test_an_offset_is_added_in_float32_and_taken_away_again() -> None:
    stored = torch.tensor([0.001, -0.5]).bfloat16()
    weights, _ = mapped({NORM: stored}, {NORM: Target(NORM, offset=1.0)}, {NORM: (2,)})

    ours = weights.rows(NORM, 0, 2)

    torch.testing.assert_close(ours, stored.float() + 1, rtol=0, atol=0)
    (piece,) = published_pieces({NORM: Target(NORM, offset=1.0)}, NORM, (2,))
    back: dict[str, Tensor] = {}
    piece.write(ours, back, torch.bfloat16)
    torch.testing.assert_close(back, {NORM: stored})


TOWERS: Table = {
    "vision_tower.*": None,
    "language_model.model.*": "model.",
    "model.norm.weight": Target(NORM),
}


@pytest.mark.parametrize("name", ["model.norm.weight", "language_model.model.norm.weight"])
def test_another_tower_is_dropped_and_the_text_is_found(name: str) -> None:
    stored = {name: torch.ones(2), "vision_tower.blocks.0.norm.weight": torch.ones(3)}

    weights, _ = mapped(stored, TOWERS, {NORM: (2,)})

    assert weights.rows(NORM, 0, 2).tolist() == [1, 1]


def test_a_tower_that_no_table_names_is_unexpected() -> None:
    stored = {"model.norm.weight": torch.ones(2), "audio_tower.weight": torch.ones(3)}

    with pytest.raises(WeightError, match=r"unexpected audio_tower\.weight"):
        mapped(stored, TOWERS, {NORM: (2,)})


@pytest.mark.parametrize(
    "name",
    [
        *("k_scale", "attn.v_scale", "q_proj.input_scale", "q_proj.input_zero_point"),
        *("q_proj.weight.absmax", "q_proj.weight.nested_quant_map", "q_proj.SCB"),
        "q_proj.weight.quant_state.bitsandbytes__nf4",
    ],
)
def test_what_a_quantizer_left_next_to_floats_is_ignored(name: str) -> None:
    stored = {"model.norm.weight": torch.ones(2), f"model.layers.0.{name}": torch.ones(1)}

    weights, _ = mapped(stored, TOWERS, {NORM: (2,)})

    assert weights.rows(NORM, 0, 2).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("q_proj.weight_scale", "Restore its quantization_config"),
        ("q_proj.qweight", "Restore its quantization_config"),
        ("q_proj.weight_fake_quant.scale", "Convert it to plain weights"),
        ("k_bmm_quantizer._amax", "Convert it to plain weights"),
        ("q_proj.lora_A.default.weight", r"Save merge_and_unload\(\)"),
        ("q_proj.base_layer.weight", r"Save merge_and_unload\(\)"),
        ("q_proj.weight_mask", r"torch\.nn\.utils\.prune\.remove"),
        ("q_proj.parametrizations.weight.original0", "remove_parametrizations"),
        ("q_proj.nothing", "do not belong together"),
    ],
)
def test_the_message_about_a_leftover_says_what_to_do(name: str, advice: str) -> None:
    stored = {"model.norm.weight": torch.ones(2), f"model.layers.0.{name}": torch.ones(1)}

    with pytest.raises(WeightError, match=advice):
        mapped(stored, TOWERS, {NORM: (2,)})


# --- experts ------------------------------------------------------------------------------------

N, R, E = 3, 4, 5

GATE_UP, DOWN, BIAS = (f"blocks.1.experts.{name}" for name in ("gate_up", "down", "gate_up_bias"))

EXPERTS = {GATE_UP: (N, 2 * R, E), DOWN: (N, E, R), BIAS: (N, 2 * R)}

GATES, UPS, DOWNS = torch.randn(N, R, E), torch.randn(N, R, E), torch.randn(N, E, R)

GATE_BIAS, UP_BIAS = torch.randn(N, R), torch.randn(N, R)

APART: Table = {
    "layers.{}.experts.{}.gate.weight": Target("blocks.{}.experts.gate_up"),
    "layers.{}.experts.{}.up.weight": Target("blocks.{}.experts.gate_up"),
    "layers.{}.experts.{}.down.weight": Target("blocks.{}.experts.down"),
    "layers.{}.experts.{}.gate.bias": Target("blocks.{}.experts.gate_up_bias"),
    "layers.{}.experts.{}.up.bias": Target("blocks.{}.experts.gate_up_bias"),
}

JOINED: Table = {
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
        JOINED,
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


@pytest.mark.parametrize("name", STORED)
def test_experts_are_stacked_with_alternating_gate_and_up_rows(name: str) -> None:
    table, tensors = STORED[name]
    weights, _ = mapped(tensors, table, EXPERTS)
    for ours, expected in OURS.items():
        assert torch.equal(weights.rows(ours, 0, N), expected)
        assert torch.equal(weights.rows(ours, 1, 2), expected[1:2])


@pytest.mark.parametrize("name", STORED)
def test_one_expert_is_read_without_the_others(name: str) -> None:
    table, tensors = STORED[name]
    weights, source = mapped(tensors, table, EXPERTS)
    weights.rows(GATE_UP, 2, 3)
    assert source.elements == 2 * R * E


def test_an_expert_that_is_missing_or_misshapen_is_named() -> None:
    tensors = apart()
    del tensors["layers.1.experts.2.up.weight"]
    tensors["layers.1.experts.0.down.weight"] = torch.zeros(R, E)
    with pytest.raises(WeightError, match="2 differences") as raised:
        mapped(tensors, APART, EXPERTS)
    assert "missing layers.1.experts.2.up.weight" in str(raised.value)
    assert "layers.1.experts.0.down.weight: expected shape (5, 4), got (4, 5)" in str(raised.value)


def test_a_surplus_expert_is_unexpected() -> None:
    tensors = apart() | {"layers.1.experts.3.down.weight": DOWNS[0]}
    with pytest.raises(WeightError, match=r"unexpected layers\.1\.experts\.3\.down\.weight"):
        mapped(tensors, APART, EXPERTS)
