"""Schemes of weights."""

import onnx_ir as ir
import pytest
from torch import Tensor

from ortolan.export.options import Auto, Int4, Int8
from ortolan.export.quantize.schemes import NARROW, assign_schemes, scheme_choices, scheme_of
from ortolan.export.scheme import Scheme
from ortolan.export.settings import NARROW_GROUP_SIZE, Quantization, resolve
from ortolan.modeling.weights import CodedRows, CodeFormat


def product(name: str, columns: int) -> ir.Model:
    """A graph of one product."""
    shape, kind = ir.Shape((8, columns)), ir.TensorType(ir.DataType.FLOAT)
    weight, x = ir.Value(name=name, shape=shape, type=kind), ir.Value(name="x")
    node = ir.Node("com.microsoft", "FusedMatMul", [x, weight], num_outputs=1)
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=(), opset_imports={"": 24})
    graph.initializers.add(weight)
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize(
    ("columns", "group"),
    [(576, 64), (1536, 256), (640, 128), (688, 256), (100, 128), (64, 64), (20, 32), (129, 32)],
)
def test_rows_take_the_groups_that_make_them_shortest(columns: int, group: int) -> None:
    scheme = Scheme(bits=4, group=256)
    options = Quantization(scheme=scheme, head=scheme, method="rtn", shrink_groups=True)
    assert assign_schemes([product("w", columns)], options)["w"].group == group


@pytest.mark.parametrize(
    ("kind", "precision", "columns", "group"),
    [
        ("decoder", Int4(), NARROW - 32, NARROW_GROUP_SIZE),
        ("decoder", Int4(), NARROW, 256),
        ("decoder", Int4(method="rtn"), 1536, NARROW_GROUP_SIZE),
        ("encoder-decoder", Int4(), 512, NARROW_GROUP_SIZE),
        ("decoder", Int4(group_size=64), 512, 64),
        ("decoder", Int8(), 512, 128),
        ("encoder", Int4(), 512, NARROW_GROUP_SIZE),
    ],
)
def test_short_rows_take_small_groups_in_4_bits(
    kind: str, precision: Int4 | Int8, columns: int, group: int
) -> None:
    found = resolve(kind, precision=precision).quantization
    assert found is not None
    assert scheme_of("blocks.0.feed_forward.up.weight", columns, found).group == group
    # Unlike blocks, the head keeps its group size.
    assert scheme_of("head.weight", columns, found).group == found.head.group


class HeadIn8Bits:
    """Weights of a checkpoint that stores its head in 8 bits."""

    def code_format(self, name: str) -> CodeFormat | None:
        return CodeFormat(8, 32, symmetric=True) if name == "head.weight" else None

    def shape(self, name: str) -> tuple[int, ...]:
        raise NotImplementedError

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        raise NotImplementedError

    def codes(self, name: str, start: int, stop: int) -> CodedRows:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (Int4(), (8, 32)),
        (Int4(head_bits=8), (8, 32)),
        (Int4(head_bits=4), (4, 128)),
        (Int4(method="gptq"), (4, 128)),
        (Int8(), (8, 32)),
    ],
)
def test_head_that_a_checkpoint_has_in_8_bits_keeps_them_unless_4_are_asked_for(
    precision: Int4 | Int8, expected: tuple[int, int]
) -> None:
    found = resolve("decoder", precision=precision).quantization
    assert found is not None
    scheme = scheme_of("head.weight", 4096, found, HeadIn8Bits())
    assert (scheme.bits, scheme.group) == expected


@pytest.mark.parametrize("columns", [512, 4096])
def test_bits_are_chosen_among_large_groups_small_ones_and_8_bits(columns: int) -> None:
    asked = resolve("decoder", precision=Auto(max_kl=0.1)).quantization
    assert asked is not None
    name = "blocks.0.feed_forward.up.weight"
    offered = scheme_choices([product(name, columns)], asked)[(name,)]
    found = [(each[name].bits, each[name].group) for each in offered]
    assert found == [(4, 256), (4, 32), (8, 128)]
