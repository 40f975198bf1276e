"""Types and kernels of nodes; the table of kernels against the installed onnxruntime."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime  # type: ignore[import-untyped]
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state  # type: ignore[import-untyped]
from tests.runtime import tiny_bundle

from ortolan.runtime import Bundle, DeviceError, open_bundle
from ortolan.runtime.graph.schema import parse_model
from ortolan.runtime.inspect.kernel_table import DECISIVE_INPUT, KERNELS, TYPES
from ortolan.runtime.inspect.placement import node_kinds, place, placement

GQA = "com.microsoft::GroupQueryAttention"

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL

node = helper.make_node


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    tiny_bundle.write(tmp_path / "bundle")
    return open_bundle(tmp_path / "bundle")


def model(inputs: Mapping[str, int], nodes: list[NodeProto]) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in inputs.items()],
        [],
    )
    proto: ModelProto = helper.make_model(graph)
    return proto


def kinds(inputs: Mapping[str, int], nodes: list[NodeProto]) -> dict[str, str]:
    counted = node_kinds(parse_model(model(inputs, nodes).SerializeToString()).graph)
    return {kind.operator.partition("::")[2]: kind.dtype for kind in counted}


def test_types_propagate_from_the_inputs() -> None:
    dtypes = kinds(
        {"x": HALF, "mask": BOOL},
        [
            node("Sigmoid", ["x"], ["y"]),
            node("Shape", ["y"], ["shape"]),
            node("Cast", ["shape"], ["sizes"], to=FLOAT),
            node("Neg", ["sizes"], ["negated"]),
            node("CastLike", ["negated", "x"], ["like"]),
            node("Less", ["like", "y"], ["less"]),
            node("Not", ["less"], ["more"]),
            node("Where", ["more", "like", "y"], ["chosen"]),
            node("Relu", ["chosen"], ["z"]),
        ],
    )
    assert dtypes == {
        "Sigmoid": "float16",
        "Shape": "float16",
        "Cast": "int64",
        "Neg": "float32",
        "CastLike": "float32",
        "Less": "float16",
        "Not": "bool",
        "Where": "float16",
        "Relu": "float16",
    }


@pytest.mark.parametrize(
    ("attribute", "dtype"),
    [
        ({"value_float": 1.0}, "float32"),
        ({"value_ints": [1, 2]}, "int64"),
        ({"value": helper.make_tensor("t", HALF, [1], [1.0])}, "float16"),
    ],
)
def test_constants_have_a_type_and_are_not_counted(attribute: dict[str, Any], dtype: str) -> None:
    constant = node("Constant", [], ["c"], **attribute)
    assert kinds({}, [constant, node("Identity", ["c"], ["same"])]) == {"Identity": dtype}


def test_a_lookup_of_codes_has_the_type_of_its_scales() -> None:
    codes = {"codes": TensorProto.UINT8, "ids": INT64, "scales": HALF}
    lookup = node("GatherBlockQuantized", ["codes", "ids", "scales"], ["x"], domain="com.microsoft")
    assert kinds(codes, [lookup, node("Relu", ["x"], ["y"])]) == {
        "GatherBlockQuantized": "float16",
        "Relu": "float16",
    }


def test_nodes_of_a_bundle_are_placed(bundle: Bundle) -> None:
    placed = placement(bundle, "cpu")
    assert placed.misplaced == ()
    assert (placed.placed, placed.shape_nodes) == (5, 1)
    # attention with a cache has no kernel for float32 there
    (misplaced,) = placement(bundle, "cuda").misplaced
    assert (misplaced.graph, misplaced.operator, misplaced.dtype) == ("decoder", GQA, "float32")
    assert (misplaced.count, misplaced.fallback) == (1, "cpu")
    with pytest.raises(DeviceError, match="cpu or cuda"):
        placement(bundle, "tpu")


@pytest.mark.parametrize(
    ("dtype", "device", "operator", "fallback"),
    [
        (HALF, "cuda", "MatMul", None),
        (HALF, "cpu", "MatMul", "float32"),
        (TensorProto.BFLOAT16, "cpu", "MatMul", "none"),
        (TensorProto.BFLOAT16, "cuda", "ReduceL2", "none"),
        (FLOAT, "cuda", "Erf", "unknown"),
    ],
)
def test_the_fallback_depends_on_type_and_device(
    dtype: int, device: str, operator: str, fallback: str | None
) -> None:
    graph = model({"x": dtype, "w": dtype}, [node(operator, ["x", "w"], ["y"])])
    misplaced = place({"decoder": graph.SerializeToString()}, device).misplaced
    assert [kind.fallback for kind in misplaced] == ([] if fallback is None else [fallback])


# --- the table of kernels -----------------------------------------------------------------------

OPSET = 24

DECISIVE_CONSTRAINT = {
    "ai.onnx::Attention": "T1",
    "ai.onnx::Cast": "T1",
    "ai.onnx::DequantizeLinear": "T2",
    "ai.onnx::Identity": "V",
    "ai.onnx::QuantizeLinear": "T1",
    "com.microsoft::DynamicQuantizeMatMul": "T1",
    "com.microsoft::GatherBlockQuantized": "T2",
    "com.microsoft::MatMulIntegerToFloat": "T1",
    "com.microsoft::MatMulNBits": "T1",
}
"""Type parameter of the decisive input in a kernel's registration, if not T."""


@cache
def registered() -> dict[str, set[str]]:
    """Return the element types with a CPU kernel, by operator."""
    by_operator: dict[str, set[str]] = {}
    for kernel in onnxruntime_pybind11_state.get_all_opkernel_def():
        first, last = kernel.version_range
        is_standard = kernel.domain == ""
        if kernel.provider != "CPUExecutionProvider":
            continue
        if is_standard and not first <= OPSET <= last:
            continue
        operator = f"{kernel.domain or 'ai.onnx'}::{kernel.op_name}"
        names = kernel.type_constraints.get(DECISIVE_CONSTRAINT.get(operator, "T"), [])
        types = {name.removeprefix("tensor(").removesuffix(")") for name in names}
        types = {{"float": "float32"}.get(name, name) for name in types}
        by_operator.setdefault(operator, set()).update(types)
    return by_operator


@pytest.mark.skipif(
    not onnxruntime.__version__.startswith("1.31."), reason="the table is of onnxruntime 1.31"
)
@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    reason="the registry of the GPU package opens libraries of providers that may be missing",
)
@pytest.mark.parametrize("operator", KERNELS)
def test_the_cpu_column_equals_the_installed_registry(operator: str) -> None:
    assert KERNELS[operator].cpu == registered()[operator] & TYPES


def test_columns_contain_only_types_of_the_table() -> None:
    for kernels in KERNELS.values():
        assert kernels.cpu | kernels.cuda <= TYPES
    assert set(DECISIVE_INPUT) <= set(KERNELS)
