"""The kernel table agrees with the registry of the installed onnxruntime."""

from functools import cache

import onnxruntime  # type: ignore[import-untyped]
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state  # type: ignore[import-untyped]

from ortolan.runtime.inspect.kernel_table import DECISIVE_INPUT, KERNELS, TYPES

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
