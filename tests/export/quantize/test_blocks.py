import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from syrupy.assertion import SnapshotAssertion
from tests.export.quantize.low_bit import (
    SCHEMES,
    Array,
    constant,
    gather_block_quantized,
    graph,
    label,
    matmul_nbits,
    meaning,
    packed,
    random_codes,
    raw_constant,
    run,
)
from tests.refusals import refusal

from ortolan.export.quantize.blocks import (
    Codes,
    check_finite,
    dequantize,
    into_groups,
    nearest,
    pack,
    pack_columns,
    pack_zeros,
)
from ortolan.export.scheme import Scheme

ROWS = 7
"""Odd, so that columns of 4-bit codes end within a byte."""

WIDTHS = [128, 100, 20]
"""A multiple of every group; one with a short last group; one less than any group."""

ELEMENTS = {
    (4, True): TensorProto.INT4,
    (4, False): TensorProto.UINT4,
    (8, True): TensorProto.INT8,
    (8, False): TensorProto.UINT8,
}

every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=label)
every_width = pytest.mark.parametrize("width", WIDTHS)


def activations(width: int) -> Array:
    return np.random.default_rng(0).standard_normal((2, 3, width)).astype(np.float32)


def product(codes: Codes, x: Array, *, accuracy_level: int) -> Array:
    arrays = packed(codes)
    node = matmul_nbits(codes, ["x", *arrays], accuracy_level=accuracy_level)
    constants = [constant(name, array) for name, array in arrays.items()]
    return run(graph([node], constants, {"x": x}), {"x": x})[0]


def portable_product(codes: Codes, x: Array) -> onnx.ModelProto:
    """DequantizeLinear in front of MatMul."""
    rows, width = codes.values.shape
    element = ELEMENTS[codes.scheme.bits, codes.scheme.symmetric]
    columns, zeros = pack_columns(codes)
    scales = codes.scales.T.contiguous()
    constants = [
        raw_constant("weights", element, (width, rows), columns.numpy()),
        constant("scales", scales.numpy()),
    ]
    if zeros is not None:
        constants.append(raw_constant("zeros", element, scales.shape, zeros.numpy()))
    nodes = [
        helper.make_node(
            "DequantizeLinear",
            [each.name for each in constants],
            ["floats"],
            axis=0,
            block_size=codes.scheme.group,
        ),
        helper.make_node("MatMul", ["x", "floats"], ["y"]),
    ]
    return graph(nodes, constants, {"x": x})


@every_width
@every_scheme
def test_codes_have_the_numbers_of_the_definition_and_the_shapes_of_the_kernels(
    scheme: Scheme, width: int
) -> None:
    codes = random_codes(scheme, rows=ROWS, inputs=width)
    np.testing.assert_array_equal(dequantize(codes).numpy(), meaning(codes))
    groups = math.ceil(width / scheme.group)
    assert pack(codes).shape == (ROWS, groups, scheme.group * scheme.bits // 8)
    assert pack(codes).is_contiguous()
    zeros = pack_zeros(codes)
    assert (zeros is None) == scheme.symmetric
    assert zeros is None or zeros.shape == (ROWS, math.ceil(groups * scheme.bits / 8))


@every_scheme
def test_short_last_group_is_filled_with_its_zero_point(scheme: Scheme) -> None:
    codes = random_codes(scheme, rows=ROWS, inputs=scheme.group + 5)
    last = pack(codes)[:, -1]
    if scheme.bits == 4:
        last = torch.stack((last & 15, last >> 4), -1).view(ROWS, -1)
    zeros = torch.full((ROWS,), scheme.middle) if codes.zeros is None else codes.zeros[:, -1]
    assert torch.equal(last[:, 5:], zeros[:, None].expand(-1, scheme.group - 5).to(torch.uint8))
    assert torch.equal(last[:, :5], codes.values[:, scheme.group :])


@every_width
@every_scheme
def test_product_of_packed_codes_is_off_by_no_more_than_rounded_activations(
    scheme: Scheme, width: int
) -> None:
    codes, x = random_codes(scheme, rows=ROWS, inputs=width), activations(width)
    weight = meaning(codes)
    wanted = x @ weight.T
    got = product(codes, x, accuracy_level=0)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())
    off = np.abs(product(codes, x, accuracy_level=4) - wanted)
    step = np.abs(x).max() / 127  # the kernel's, for the group with the largest activation
    assert (off <= step / 2 * np.abs(weight).sum(1)).all()
    assert off.max() > 1e-4  # it does round: this is not level 0


@every_width
@every_scheme
def test_gathered_rows_of_packed_codes_are_exact(scheme: Scheme, width: int) -> None:
    codes = random_codes(scheme, rows=ROWS, inputs=width)
    arrays = packed(codes)
    arrays["codes"] = arrays["codes"].reshape(ROWS, -1)
    node = gather_block_quantized(codes, ["codes", "ids", *list(arrays)[1:]], "rows")
    constants = [constant(name, array) for name, array in arrays.items()]
    feeds = {"ids": np.array([[0, ROWS - 1, 2], [2, 1, -1]])}
    (rows,) = run(graph([node], constants, feeds), feeds)
    assert rows.shape == (2, 3, scheme.groups(width) * scheme.group)
    np.testing.assert_array_equal(rows[..., :width], meaning(codes)[feeds["ids"]])
    assert not rows[..., width:].any()


@every_width
@every_scheme
def test_portable_product_becomes_one_kernel_and_means_the_same_in_the_reference(
    scheme: Scheme, width: int, tmp_path: Path
) -> None:
    codes, x = random_codes(scheme, rows=ROWS, inputs=width), activations(width)
    model, seen = portable_product(codes, x), tmp_path / "optimized.onnx"
    (got,) = run(model, {"x": x}, optimized=seen, exact_products=True)
    assert [node.op_type for node in onnx.load(seen).graph.node] == ["MatMulNBits"]
    np.testing.assert_allclose(got, product(codes, x, accuracy_level=0), rtol=0, atol=1e-6)
    del model.opset_import[1:]
    reference: Any = ReferenceEvaluator(model).run(None, {"x": x})
    wanted = x @ meaning(codes).T
    np.testing.assert_allclose(reference[0], wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize(("bits", "group"), [(2, 32), (5, 32), (4, 16), (8, 0)])
def test_scheme_without_kernels_is_rejected(
    bits: Any, group: Any, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: Scheme(bits=bits, group=group)) == snapshot


def test_nearest_code_is_rounded_and_stays_in_range() -> None:
    scheme = Scheme(bits=4, group=32)
    numbers = torch.tensor([-100.0, -4.1, -0.9, 0.0, 0.4, 0.6, 3.4, 100.0])
    codes = nearest(numbers, torch.tensor(0.5), torch.tensor(8.0), scheme)
    assert codes.tolist() == [0, 0, 6, 8, 9, 9, 15, 15]


def test_scale_of_zero_gives_the_code_of_zero() -> None:
    scheme = Scheme(bits=4, group=32, symmetric=False)
    codes = nearest(torch.tensor([-1.0, 0.0, 7.0]), torch.zeros(3), torch.tensor(3.0), scheme)
    assert codes.tolist() == [3, 3, 3]


@pytest.mark.parametrize("inputs", [64, 40])
def test_groups_follow_the_inputs(inputs: int) -> None:
    matrix = torch.arange(2.0 * inputs).view(2, inputs)
    blocks = into_groups(matrix, 32)
    assert blocks.shape == (2, 2, 32)
    assert torch.equal(blocks.view(2, -1)[:, :inputs], matrix)
    assert not blocks.view(2, -1)[:, inputs:].any()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_weight_that_is_not_finite_is_refused_with_its_place(
    number: float, snapshot: SnapshotAssertion
) -> None:
    weight = torch.ones(3, 4)
    weight[2, 1] = number
    assert refusal(lambda: check_finite(weight)) == snapshot
