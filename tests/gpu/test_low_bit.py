"""Products and look-ups of low-bit weights as one node, against the values of the codes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto
from tests.export.attention_graphs import Arrays, Run
from tests.export.quantize.low_bit import (
    SCHEMES,
    constant,
    gather_block_quantized,
    graph,
    label,
    matmul_nbits,
    packed,
    random_codes,
)
from tests.gpu.one_node import TOLERANCE, VISIBLE, Place, distance, everywhere, on, rounded

from ortolan.export.quantize.blocks import Codes, dequantize
from ortolan.export.scheme import BITS, Scheme

ROWS, WIDTH = 96, 512
"""Shape of a weight, with at least two groups in a row."""

TOKENS = {"one": (1, 1), "three rows": (3, 1), "a prompt": (1, 37)}
"""Shapes of the activations; a GPU chooses its kernel by the number of tokens."""

IDS = np.array([[0, ROWS - 1, 2], [2, 1, 50]])

every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=label)


def codes_of(scheme: Scheme, dtype: str = "float32") -> Codes:
    """Random codes whose scales are exact in a type."""
    codes = random_codes(scheme, rows=ROWS, inputs=WIDTH)
    return replace(codes, scales=codes.scales.to(getattr(torch, dtype)).float())


def activations(tokens: tuple[int, int]) -> Arrays:
    return {"x": np.random.default_rng(0).normal(size=(*tokens, WIDTH)).astype(np.float32)}


def product_graph(codes: Codes) -> ModelProto:
    arrays = packed(codes)
    # Level 0 does not round activations on the CPU; a GPU has no levels.
    node = matmul_nbits(codes, ["x", *arrays], accuracy_level=0)
    constants = [constant(name, array) for name, array in arrays.items()]
    return graph([node], constants, activations((1, 1)))


def product(codes: Codes) -> Run:
    weight = dequantize(codes).double().numpy()

    def run(inputs: Arrays) -> list[NDArray[np.float32]]:
        return [(np.asarray(inputs["x"], np.float64) @ weight.T).astype(np.float32)]

    return run


def look_up_graph(codes: Codes) -> ModelProto:
    arrays = packed(codes)
    arrays["codes"] = arrays["codes"].reshape(ROWS, -1)
    node = gather_block_quantized(codes, ["codes", "ids", *list(arrays)[1:]], "rows")
    constants = [constant(name, array) for name, array in arrays.items()]
    return graph([node], constants, {"ids": IDS})


def rows_of(codes: Codes) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = dequantize(codes).numpy()[IDS]
    return rows


@everywhere("com.microsoft::MatMulNBits")
@pytest.mark.parametrize("tokens", TOKENS.values(), ids=TOKENS)
@every_scheme
def test_product(scheme: Scheme, tokens: tuple[int, int], place: Place) -> None:
    codes, x = codes_of(scheme, place.dtype), activations(tokens)
    model = product_graph(codes)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    expected = rounded(product(codes), place.dtype)(x)
    assert distance(on(place, model)(x), expected) < TOLERANCE[place.dtype]


@everywhere("com.microsoft::GatherBlockQuantized")
@every_scheme
def test_look_up(scheme: Scheme, place: Place) -> None:
    codes = codes_of(scheme, place.dtype)
    got = on(place, look_up_graph(codes))({"ids": IDS})
    assert distance(got, [rows_of(codes)]) < TOLERANCE[place.dtype]


SLIPS: dict[str, Callable[[Codes], Codes]] = {
    "halves of bytes swapped": lambda codes: replace(
        codes, values=codes.values.reshape(ROWS, -1, 2).flip(-1).reshape(ROWS, -1)
    ),
    "the next group's scales": lambda codes: replace(codes, scales=codes.scales.roll(1, 1)),
    "no zero points": lambda codes: replace(codes, zeros=None),
    "zero points of the next group": lambda codes: replace(
        codes, zeros=None if codes.zeros is None else codes.zeros.roll(1, 1)
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
@pytest.mark.parametrize("bits", BITS)
def test_a_slip_is_seen_in_every_type(bits: int, slip: str) -> None:
    for scheme in SCHEMES:
        if scheme.bits != bits or (scheme.symmetric and "zero points" in slip):
            continue
        codes, x = codes_of(scheme), activations(TOKENS["one"])
        wrong = SLIPS[slip](codes)
        assert distance(product(wrong)(x), product(codes)(x)) > VISIBLE
        assert distance([rows_of(wrong)], [rows_of(codes)]) > VISIBLE
