"""Norms as one node, against plain formulas in float64."""

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
    """A node and its formula over `x`, perhaps `skip`, and weights."""

    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    formula: Callable[..., tuple[Array, ...]]


class Case(NamedTuple):
    """Activations: width, deviation, and the factor of one channel."""

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
    "after an embedding": Case(64, 1.0),
    "wide": Case(4096, 1.0),
    "of a head": Case(128, 1.0, epsilon=1e-6),
    # The square of one number overflows float16.
    "large": Case(576, 2000.0),
    # The sum of the squares does, but no single square.
    "many": Case(4096, 100.0),
    "one massive channel": Case(2048, 1.0, outlier=300.0),
    "small": Case(256, 0.01, epsilon=1e-4),
}


def graph(operator: str, case: Case) -> ModelProto:
    norm, value = NORMS[operator], helper.make_tensor_value_info
    node = helper.make_node(
        operator, norm.inputs, norm.outputs, domain=norm.domain, epsilon=case.epsilon
    )
    inputs = arrays_of(norm, case)
    proto = helper.make_graph(
        [node],
        "norm",
        [value(name, TensorProto.FLOAT, array.shape) for name, array in inputs.items()],
        [
            value(name, TensorProto.FLOAT, ["batch", "sequence", case.width])
            for name in norm.outputs
            if name
        ],
    )
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(proto, opset_imports=opsets, ir_version=10)


def arrays_of(norm: Norm, case: Case) -> Arrays:
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
        return [out.astype(np.float32) for out in norm.formula(*arrays, epsilon=epsilon)]

    return run


every_case = pytest.mark.parametrize("name", CASES)


def check(operator: str, name: str, place: Place) -> None:
    case = CASES[name]
    arrays = arrays_of(NORMS[operator], case)
    got = on(place, graph(operator, case))(arrays)
    expected = rounded(formula(operator, case.epsilon), place.dtype)(arrays)
    assert np.isfinite(got[0]).all()
    assert distance(got, expected) < TOLERANCE[place.dtype]


@everywhere("ai.onnx::LayerNormalization")
@every_case
def test_layer_norm(name: str, place: Place) -> None:
    check("LayerNormalization", name, place)


@everywhere("ai.onnx::RMSNormalization")
@every_case
def test_rms_norm(name: str, place: Place) -> None:
    check("RMSNormalization", name, place)


@everywhere("com.microsoft::SkipSimplifiedLayerNormalization")
@every_case
def test_sum_and_its_norm(name: str, place: Place) -> None:
    check("SkipSimplifiedLayerNormalization", name, place)


@pytest.mark.parametrize("operator", NORMS)
@every_case
def test_an_input_that_is_not_read_is_seen_in_every_type(operator: str, name: str) -> None:
    arrays = arrays_of(NORMS[operator], CASES[name])
    run = formula(operator, CASES[name].epsilon)
    expected = run(arrays)
    for unread in NORMS[operator].inputs:
        neutral = np.full_like(arrays[unread], 0.0 if unread == "b" else 1.0)
        assert distance(run(arrays | {unread: neutral}), expected) > VISIBLE
    if name == "small":
        assert distance(formula(operator, 1e-12)(arrays), expected) > VISIBLE
