"""One node on each device and in each type of floats, against a definition that is not a kernel.

Attention against PyTorch, norms against formulas in float64, products and look-ups of low-bit
weights against the values of the codes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper
from tests.export import attention_graphs as cached
from tests.export import whole_attention_graphs as whole
from tests.export.attention_graphs import Arrays, Conversation, Run
from tests.export.passes.test_attention import plain
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
from tests.gpu.one_node import DTYPES, TOLERANCE, Outputs, Place, distance, on, places, rounded

from ortolan.export.quantize.blocks import Codes, dequantize
from ortolan.export.scheme import Scheme

Call = Callable[[Run], Outputs]
"""Runs a graph, or its definition, on the inputs of a case."""


class Case(NamedTuple):
    """A node, its definition, and how to call both.

    Attributes:
        build: graph in float32 and its definition, for weights that are exact in a type.
        in_place: outputs that overwrite an input.
    """

    operator: str
    build: Callable[[str], tuple[ModelProto, Run]]
    call: Call
    in_place: Mapping[str, str] = {}
    dtypes: tuple[str, ...] = DTYPES


def once(inputs: Arrays) -> Call:
    return lambda run: run(inputs)


# --- attention --------------------------------------------------------------------------------

ATTENTION = "com.microsoft::GroupQueryAttention"

LARGE = {
    # A GPU chooses its kernel by these sizes.
    "64 wide, keys for every head": cached.Kind(heads=8, kv_heads=8, width=64, scale=0.125),
    "64 wide, 8 heads share": cached.Kind(heads=8, kv_heads=1, width=64, rotated=64, scale=0.125),
    "128 wide, 4 heads share": cached.Kind(
        heads=8, kv_heads=2, width=128, rotated=128, scale=128**-0.5, apart=True
    ),
    "96 wide, partial rotary": cached.Kind(width=96, rotated=48, scale=96**-0.5),
    "256 wide, softcap": cached.Kind(
        heads=4, kv_heads=1, width=256, rotated=256, softcap=3.0, scale=256**-0.5
    ),
}

FORMS = {
    "a bias for each row": cached.Kind(biased=True, by_row=True),
    "another layer's cache": cached.Kind(shared=True),
    "another layer's cache, rotary and window": cached.Kind(shared=True, rotated=32, window=5),
    "another layer's cache, sinks": cached.Kind(shared=True, sinks=True, width=64),
}

CACHED = cached.KINDS | cached.SINKS | LARGE | FORMS

LONG = {
    "long": cached.Kind(width=64, rotated=64, capacity=320, scale=0.125),
    "long, window": cached.Kind(width=64, rotated=64, capacity=320, scale=0.125, window=130),
    "long, sinks": cached.Kind(width=64, capacity=320, scale=0.125, sinks=True, window=128),
    "long, bias": cached.Kind(width=64, capacity=320, scale=0.125, biased=True),
}
"""More tokens than a kernel takes at once, in a buffer that is longer still."""

LONG_CONVERSATIONS = {
    "one row": Conversation(steps=[(290,), (3,), (1,), (1,)]),
    "ragged": Conversation(steps=[(300, 1, 129), (1, 1, 1), (1, 1, 1)]),
}

WHOLE = whole.KINDS | {
    "64 wide": whole.Kind(heads=8, kv_heads=8, width=64, scale=0.125),
    "64 wide, rotary": whole.Kind(heads=8, kv_heads=8, width=64, rotated=64, scale=0.125),
    "64 wide, bias": whole.Kind(heads=8, kv_heads=8, width=64, scale=0.5, biased=True),
    "64 wide, window on both sides": whole.Kind(width=64, scale=0.125, around=2),
}


def with_cache(kind: cached.Kind, dtype: str) -> tuple[ModelProto, Run]:
    return cached.graph(kind), cached.in_pytorch(kind)


def without_cache(kind: whole.Kind, dtype: str) -> tuple[ModelProto, Run]:
    return whole.graph(kind), whole.in_pytorch(kind)


def talk(kind: cached.Kind, run: Run) -> Outputs:
    """Run all conversations, one after the other."""
    return [part for steps in cached.CONVERSATIONS.values() for part in steps.run(kind, run)]


CASES: dict[str, Case] = {}

for name, kind in CACHED.items():
    case = Case(ATTENTION, partial(with_cache, kind), partial(talk, kind))
    CASES[f"cache, {name}"] = case
    over = {} if kind.shared else cached.CACHE
    CASES[f"cache in place, {name}"] = case._replace(in_place=over, dtypes=("float32", "float16"))

for name, kind in LONG.items():
    for rows, conversation in LONG_CONVERSATIONS.items():
        CASES[f"{name}, {rows}"] = Case(
            ATTENTION, partial(with_cache, kind), partial(conversation.run, kind)
        )

for name, kind_of_whole in WHOLE.items():
    CASES[f"no cache, {name}"] = Case(
        ATTENTION, partial(without_cache, kind_of_whole), partial(whole.run_rows, kind_of_whole)
    )

# --- low-bit weights --------------------------------------------------------------------------

ROWS, WIDTH = 96, 512
"""Shape of a weight, with at least two groups in a row."""

TOKENS = {"one": (1, 1), "three rows": (3, 1), "a prompt": (1, 37)}
"""Shapes of the activations; a GPU chooses its kernel by the number of tokens."""

IDS = np.array([[0, ROWS - 1, 2], [2, 1, 50]])


def codes_of(scheme: Scheme, dtype: str = "float32") -> Codes:
    """Random codes whose scales are exact in a type."""
    codes = random_codes(scheme, rows=ROWS, inputs=WIDTH)
    return replace(codes, scales=codes.scales.to(getattr(torch, dtype)).float())


def activations(tokens: tuple[int, int]) -> Arrays:
    return {"x": np.random.default_rng(0).normal(size=(*tokens, WIDTH)).astype(np.float32)}


def product(scheme: Scheme, dtype: str) -> tuple[ModelProto, Run]:
    codes = codes_of(scheme, dtype)
    arrays = packed(codes)
    # Level 0 does not round activations on the CPU; a GPU has no levels.
    node = matmul_nbits(codes, ["x", *arrays], accuracy_level=0)
    constants = [constant(name, array) for name, array in arrays.items()]
    model = graph([node], constants, activations((1, 1)))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    weight = dequantize(codes).double().numpy()

    def run(inputs: Arrays) -> list[NDArray[np.float32]]:
        return [(np.asarray(inputs["x"], np.float64) @ weight.T).astype(np.float32)]

    return model, run


def look_up(scheme: Scheme, dtype: str) -> tuple[ModelProto, Run]:
    codes = codes_of(scheme, dtype)
    arrays = packed(codes)
    arrays["codes"] = arrays["codes"].reshape(ROWS, -1)
    node = gather_block_quantized(codes, ["codes", "ids", *list(arrays)[1:]], "rows")
    constants = [constant(name, array) for name, array in arrays.items()]
    rows: NDArray[np.float32] = dequantize(codes).numpy()[IDS]
    return graph([node], constants, {"ids": IDS}), lambda _: [rows]


for scheme in SCHEMES:
    for tokens, shape in TOKENS.items():
        CASES[f"product, {label(scheme)}, {tokens}"] = Case(
            "com.microsoft::MatMulNBits", partial(product, scheme), once(activations(shape))
        )
    CASES[f"look-up, {label(scheme)}"] = Case(
        "com.microsoft::GatherBlockQuantized", partial(look_up, scheme), once({"ids": IDS})
    )

# --- norms ------------------------------------------------------------------------------------

Array = NDArray[np.float64]


class Norm(NamedTuple):
    """A node and its formula over `x`, perhaps `skip`, and weights."""

    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    formula: Callable[..., tuple[Array, ...]]


class Activations(NamedTuple):
    """Width, deviation, and the factor of one channel."""

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
    "ai.onnx::LayerNormalization": Norm("", ("x", "w", "b"), ("y",), layer),
    "ai.onnx::RMSNormalization": Norm("", ("x", "w"), ("y",), rms),
    "com.microsoft::SkipSimplifiedLayerNormalization": Norm(
        "com.microsoft", ("x", "skip", "w"), ("y", "", "", "sum"), skip_rms
    ),
}

ACTIVATIONS = {
    "after an embedding": Activations(64, 1.0),
    "wide": Activations(4096, 1.0),
    "of a head": Activations(128, 1.0, epsilon=1e-6),
    # The square of one number overflows float16.
    "large": Activations(576, 2000.0),
    # The sum of the squares does, but no single square.
    "many": Activations(4096, 100.0),
    "one massive channel": Activations(2048, 1.0, outlier=300.0),
    "small": Activations(256, 0.01, epsilon=1e-4),
}


def arrays_of(norm: Norm, case: Activations) -> Arrays:
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


def normed(operator: str, case: Activations, dtype: str) -> tuple[ModelProto, Run]:
    norm, value = NORMS[operator], helper.make_tensor_value_info
    node = helper.make_node(
        operator.partition("::")[2],
        norm.inputs,
        norm.outputs,
        domain=norm.domain,
        epsilon=case.epsilon,
    )
    sizes: list[str | int | None] = ["batch", "sequence", case.width]
    inputs = arrays_of(norm, case)
    proto = helper.make_graph(
        [node],
        "norm",
        [value(name, TensorProto.FLOAT, array.shape) for name, array in inputs.items()],
        [value(name, TensorProto.FLOAT, sizes) for name in norm.outputs if name],
    )
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]

    def run(inputs: Arrays) -> list[NDArray[np.float32]]:
        arrays: list[Any] = [np.asarray(inputs[name], np.float64) for name in norm.inputs]
        return [out.astype(np.float32) for out in norm.formula(*arrays, epsilon=case.epsilon)]

    return helper.make_model(proto, opset_imports=opsets, ir_version=10), run


for operator, norm in NORMS.items():
    for name, activated in ACTIVATIONS.items():
        CASES[f"{operator.partition('::')[2]}, {name}"] = Case(
            operator, partial(normed, operator, activated), once(arrays_of(norm, activated))
        )

# --- every case everywhere --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(name, place, marks=marks, id=f"{name}, {place.device}, {place.dtype}")
        for name, case in CASES.items()
        for place, marks in places(case.operator, case.dtypes)
    ],
    indirect=["place"],
)
def test_a_node_computes_its_definition(name: str, place: Place) -> None:
    case = CASES[name]
    model, definition = case.build(place.dtype)
    if case.operator == ATTENTION and place.device != "cpu":
        model = plain(model, place.device)
    got = case.call(on(place, model, in_place=case.in_place))
    expected = case.call(rounded(definition, place.dtype))
    assert all(np.isfinite(part).all() for part in got)
    assert distance(got, expected) < TOLERANCE[place.dtype]
