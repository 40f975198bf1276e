"""Rotary positions as models write them: one layer for each form, in one trace."""

import warnings
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx_ir.passes import common
from tests.export.passes.graphs import Array, run
from torch import Tensor, nn

from ortolan.export.passes.fold_constants import fold_constants
from ortolan.export.passes.rotary_into_attention import rotary_into_attention
from ortolan.export.values import producer

pytestmark = pytest.mark.slow

HEADS, KV_HEADS, DIM, CONTEXT = 4, 2, 32, 40
LENGTHS = ("seqlens_k", "total_sequence_length")
PAST = ("past.key", "past.value")

WIDTHS = [HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM]

FREQUENCIES = 100.0 ** -torch.arange(0, 1, 2 / DIM)


def halves(x: Tensor, angles: Tensor) -> Tensor:
    """Llama's form."""
    cos, sin = (torch.cat([f, f], -1) for f in (angles.cos(), angles.sin()))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def neighbors(x: Tensor, angles: Tensor) -> Tensor:
    """GPT-J's form."""
    cos, sin = (f.repeat_interleave(2, -1) for f in (angles.cos(), angles.sin()))
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * cos + turned * sin


def formula(x: Tensor, angles: Tensor) -> Tensor:
    """The form of the papers."""
    first, second = x[..., : DIM // 2], x[..., DIM // 2 :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def partial(x: Tensor, angles: Tensor) -> Tensor:
    turned = halves(x[..., :16], angles[..., ::2])
    return torch.cat([turned, x[..., 16:]], -1)


def longer(x: Tensor, angles: Tensor) -> Tensor:
    """Queries and keys are scaled as well."""
    return 2 * halves(x, angles)


def scaled(x: Tensor, angles: Tensor) -> Tensor:
    return 3 * x


def few(x: Tensor, angles: Tensor) -> Tensor:
    """Fewer channels than the kernel can rotate."""
    return torch.cat([halves(x[..., :8], angles[..., :4]), x[..., 8:]], -1)


def nothing(x: Tensor, angles: Tensor) -> Tensor:
    return x


def permuted(x: Tensor, angles: Tensor) -> Tensor:
    """Channels in another order."""
    return x.flip(-1)


def wrong(x: Tensor, angles: Tensor) -> Tensor:
    """Not a rotation."""
    return x * (1 + angles.repeat_interleave(2, -1))


LAYERS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], float, float]] = {
    "halves": (halves, 1.0, 1.0),
    "the same again": (formula, 1.0, 1.0),
    "neighbors": (neighbors, 1.0, 1.0),
    "partial": (partial, 1.0, 1.0),
    "scaled queries": (halves, 0.5, 1.0),
    "other frequencies": (halves, 1.0, 0.5),
    "scaled rotation": (longer, 1.0, 1.0),
    "scaled keys": (scaled, 1.0, 1.0),
    "no positions": (nothing, 1.0, 1.0),
    "no positions, scaled": (nothing, 0.25, 1.0),
    "too few channels": (few, 1.0, 1.0),
    "permuted": (permuted, 1.0, 1.0),
    "wrong": (wrong, 1.0, 1.0),
}
"""The function of queries and keys, the factor of queries, and that of angles, for each layer."""


class Layers(nn.Module):
    """Parallel attention layers on one cache, each after another form of rotation."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", FREQUENCIES)

    def forward(
        self,
        x: Tensor,
        seqlens_k: Tensor,
        total: Tensor,
        past: tuple[Tensor, Tensor],
    ) -> list[Tensor]:
        new_tokens = x.shape[1]
        first = (seqlens_k.long() + 1 - new_tokens).clamp(min=0)[:, None]
        positions = first + torch.arange(new_tokens)
        angles = positions[:, None, :, None].float() * self.frequencies
        outs = []
        heads = [
            torch.unflatten(part, -1, (-1, DIM)).transpose(1, 2)
            for part in torch.split(x.relu(), WIDTHS, -1)
        ]
        for turn, factor, speed in LAYERS.values():
            q, k, v = heads
            q, k = turn(q, angles * speed) * factor, turn(k, angles * speed)
            out, *present = torch.onnx.ops.symbolic_multi_out(
                "com.microsoft::GroupQueryAttention",
                [*(part.transpose(1, 2).flatten(2) for part in (q, k, v)), *past, seqlens_k, total],
                {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "scale": 0.125},
                dtypes=[x.dtype] * 3,
                shapes=[(*x.shape[:2], HEADS * DIM), past[0].shape, past[1].shape],
                version=1,
            )
            outs += [out, *present]
        return outs


@pytest.fixture(scope="module")
def traced() -> ir.Model:
    width = sum(WIDTHS)
    past = torch.zeros(2, KV_HEADS, CONTEXT, DIM)
    buffer = {0: "batch"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            Layers().eval(),
            (
                torch.zeros(2, 4, width),
                torch.zeros(2, dtype=torch.int32),
                torch.zeros((), dtype=torch.int32),
                (past, past),
            ),
            dynamic_shapes=(
                {0: "batch", 1: "sequence"},
                {0: "batch"},
                {},
                (buffer, buffer),
            ),
            input_names=["x", *LENGTHS, *PAST],
            output_names=[
                f"{part}.{name}" for name in LAYERS for part in ("out", "next_key", "next_value")
            ],
            opset_version=24,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    model = program.model
    fold_constants(model, {"frequencies": FREQUENCIES})
    return model


@pytest.fixture(scope="module")
def rewritten(traced: ir.Model) -> ir.Model:
    model = traced.clone()
    assert rotary_into_attention(model.graph, CONTEXT)
    assert not rotary_into_attention(model.graph, CONTEXT)
    return common.RemoveUnusedNodesPass()(model).model


def layer(model: ir.Model, name: str) -> ir.Node:
    nodes = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    return nodes[list(LAYERS).index(name)]


def outputs(model: ir.Model, lengths: list[int], new_tokens: int) -> list[Array]:
    random = np.random.default_rng(new_tokens)
    width = sum(WIDTHS)
    past = {
        name: random.normal(size=(2, KV_HEADS, CONTEXT, DIM)).astype(np.float32) for name in PAST
    }
    return run(
        model,
        {},
        x=random.normal(size=(2, new_tokens, width)).astype(np.float32),
        seqlens_k=np.array(lengths, np.int32) - 1,
        total_sequence_length=np.array(max(lengths), np.int32),
        **past,
    )


@pytest.mark.parametrize(
    ("lengths", "new_tokens"), [([6, 6], 6), ([6, 2], 6), ([CONTEXT, 9], 1)],
    ids=["whole rows", "one with padding", "single tokens"],
)  # fmt: skip
def test_every_layer_computes_the_same(
    traced: ir.Model, rewritten: ir.Model, lengths: list[int], new_tokens: int
) -> None:
    old, new = (outputs(model, lengths, new_tokens) for model in (traced, rewritten))
    valid = np.arange(new_tokens) < np.array(lengths)[:, None]
    for place in range(0, len(old), 3):
        np.testing.assert_allclose(new[place][valid], old[place][valid], atol=2e-5)


@pytest.mark.parametrize(
    "name", ["halves", "the same again", "neighbors", "partial", "scaled rotation"]
)
def test_a_rotation_becomes_part_of_the_node(rewritten: ir.Model, name: str) -> None:
    node = layer(rewritten, name)
    assert node.attributes.get_int("do_rotary") == 1
    assert node.attributes.get_int("rotary_interleaved", 0) == (name == "neighbors")
    assert node.inputs[1] is node.inputs[2] is None


def test_layers_that_rotate_alike_share_tables(rewritten: ir.Model) -> None:
    def table(name: str) -> ir.Value | None:
        return layer(rewritten, name).inputs[7]

    assert table("halves") is not None
    assert table("halves") is table("the same again") is table("scaled queries")
    apart = ("halves", "neighbors", "partial", "other frequencies", "scaled rotation")
    assert len({table(name) for name in apart}) == 5


@pytest.mark.parametrize(
    ("name", "scale"), [("scaled queries", 0.0625), ("no positions, scaled", 0.03125)]
)
def test_a_factor_of_the_queries_becomes_one_of_the_scores(
    rewritten: ir.Model, name: str, scale: float
) -> None:
    assert layer(rewritten, name).attributes.get_float("scale") == pytest.approx(scale)


def test_heads_that_are_only_moved_are_read_as_they_were(rewritten: ir.Model) -> None:
    node = layer(rewritten, "no positions")
    assert node.attributes.get_int("do_rotary", 0) == 0
    assert node.inputs[1] is node.inputs[2] is None
    whole = node.inputs[0]
    assert whole is not None
    assert producer(whole, "Relu") is not None


@pytest.mark.parametrize("name", ["too few channels", "permuted", "wrong", "scaled keys"])
def test_forms_that_the_kernel_does_not_have_stay(rewritten: ir.Model, name: str) -> None:
    node = layer(rewritten, name)
    assert node.attributes.get_int("do_rotary", 0) == 0
    assert None not in node.inputs[:3]
    assert node.attributes.get_float("scale") == pytest.approx(0.125)
