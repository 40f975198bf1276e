"""Norms, one node, beside plain formulas in float64."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper
from tests.export.attention_graphs import Arrays, Run
from tests.gpu.one_node import TOLERANCE, VISIBLE, Place, distance, everywhere, on, rounded

Array = NDArray[np.float64]


class Norm(NamedTuple):
    """What a node computes of `x`, of `skip` too where it has one, and weights."""

    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    formula: Callable[..., tuple[Array, ...]]


class Case(NamedTuple):
    """Activations of tokens: how many, their deviation, and what one of them is multiplied by."""

    width: int
    deviation: float
    outlier: float = 1.0
    epsilon: float = 1e-5


def rms(x: Array, w: Array, epsilon: float) -> tuple[Array, ...]:
    return (x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * w,)


def layer(x: Array, w: Array, b: Array, epsilon: float) -> tuple[Array, ...]:
    centred = x - x.mean(-1, keepdims=True)
    return (rms(centred, w, epsilon)[0] + b,)


def skip_rms(x: Array, skip: Array, w: Array, epsilon: float) -> tuple[Array, ...]:
    return *rms(x + skip, w, epsilon), x + skip


NORMS = {
    "LayerNormalization": Norm("", ("x", "w", "b"), ("y",), layer),
    "RMSNormalization": Norm("", ("x", "w"), ("y",), rms),
    "SkipSimplifiedLayerNormalization": Norm(
        "com.microsoft", ("x", "skip", "w"), ("y", "", "", "sum"), skip_rms
    ),
}

CASES = {
    "as after an embedding": Case(64, 1.0),
    "wide": Case(4096, 1.0),
    "of a head": Case(128, 1.0, epsilon=1e-6),
    # The square of one is more than float16 holds.
    "large": Case(576, 2000.0),
    # So is the sum of the squares, where each of them is not.
    "many": Case(4096, 100.0),
    "one massive channel": Case(2048, 1.0, outlier=300.0),
    "small": Case(256, 0.01, epsilon=1e-4),
}


def graph(operator: str, case: Case) -> ModelProto:
    norm, value = NORMS[operator], helper.make_tensor_value_info
    node = helper.make_node(
        operator, norm.inputs, norm.outputs, domain=norm.domain, epsilon=case.epsilon
    )
    made = helper.make_graph(
        [node],
        "norm",
        [value(name, TensorProto.FLOAT, array.shape) for name, array in given(norm, case).items()],
        [
            value(name, TensorProto.FLOAT, ["batch", "sequence", case.width])
            for name in norm.outputs
            if name
        ],
    )
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


def given(norm: Norm, case: Case) -> Arrays:
    random = np.random.default_rng(2)
    arrays: Arrays = {}
    for name in norm.inputs:
        if name in ("x", "skip"):
            array = case.deviation * random.normal(size=(2, 5, case.width))
            array[..., 3] *= case.outlier
        else:
            array = 1 + random.normal(size=case.width)
        arrays[name] = array.astype(np.float32)
    return arrays


def formula(operator: str, epsilon: float) -> Run:
    def run(inputs: Arrays) -> list[NDArray[np.float32]]:
        norm = NORMS[operator]
        arrays: list[Any] = [np.asarray(inputs[name], np.float64) for name in norm.inputs]
        return [each.astype(np.float32) for each in norm.formula(*arrays, epsilon=epsilon)]

    return run


def check(operator: str, name: str, place: Place) -> None:
    case, norm = CASES[name], NORMS[operator]
    arrays = given(norm, case)
    got = on(place, graph(operator, case))(arrays)
    wanted = rounded(formula(operator, case.epsilon), place.dtype)(arrays)
    assert np.isfinite(got[0]).all()
    assert distance(got, wanted) < TOLERANCE[place.dtype]


every_case = pytest.mark.parametrize("name", CASES)


@everywhere("ai.onnx::LayerNormalization")
@every_case
def test_layer_norm(name: str, place: Place) -> None:
    check("LayerNormalization", name, place)


@everywhere("ai.onnx::RMSNormalization")
@every_case
def test_norm_by_root_mean_square(name: str, place: Place) -> None:
    check("RMSNormalization", name, place)


@everywhere("com.microsoft::SkipSimplifiedLayerNormalization")
@every_case
def test_sum_and_its_norm(name: str, place: Place) -> None:
    check("SkipSimplifiedLayerNormalization", name, place)


@pytest.mark.parametrize("operator", NORMS)
@every_case
def test_an_input_that_is_not_read_is_seen_in_every_type(operator: str, name: str) -> None:
    arrays = given(NORMS[operator], CASES[name])
    run = formula(operator, CASES[name].epsilon)
    wanted = run(arrays)
    for left_out in NORMS[operator].inputs:
        other = 0.0 if left_out == "b" else 1.0
        got = run(arrays | {left_out: np.full_like(arrays[left_out], other)})
        assert distance(got, wanted) > VISIBLE
    if name == "small":
        assert distance(formula(operator, 1e-12)(arrays), wanted) > VISIBLE
