"""Runs graphs of one node on a provider of onnxruntime, in each type that it has a kernel for.

Graphs, inputs and results are in float32; the node computes in the type under test.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from tests.export.attention_graphs import Arrays, Run
from torch.utils.dlpack import from_dlpack

from ortolan.runtime.inspect.kernel_table import KERNELS

Outputs = Sequence[NDArray[np.float32]]


class Place(NamedTuple):
    """A device, `cpu` or `cuda`, and a type of floats."""

    device: str
    dtype: str


PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

OPTIONS = {"cpu": {}, "cuda": {"use_tf32": "0"}}
"""Provider options, as in the runtime."""

ELEMENTS = {
    "float32": (TensorProto.FLOAT, torch.float32),
    "float16": (TensorProto.FLOAT16, torch.float16),
    "bfloat16": (TensorProto.BFLOAT16, torch.bfloat16),
}

TOLERANCE = {
    # Sums of thousands of numbers, which some kernels add one after the other.
    "float32": 64 * 2**-24,
    # Inputs are equal, and sums are in float32. Results are rounded, and in some kernels so are
    # intermediate values: a score of 8 that is off by one rounding changes its weight by 8.
    "float16": 8 * 2**-11,
    "bfloat16": 8 * 2**-8,
}
"""Largest difference relative to the largest number, in roundings of one."""

DTYPES = tuple(ELEMENTS)


def places(operator: str, dtypes: Iterable[str] = DTYPES) -> Iterator[tuple[Place, Any]]:
    """Return each `place` of these types for which the table has a kernel, and its marks."""
    marks = {"cpu": (), "cuda": (pytest.mark.gpu,)}
    for device in PROVIDERS:
        for dtype in dtypes:
            if dtype in getattr(KERNELS[operator], device):
                yield Place(device, dtype), marks[device]


def on(place: Place, model: ModelProto, *, in_place: Mapping[str, str] | None = None) -> Run:
    """Compute a graph on the device and in the type of a place, and nowhere else.

    Args:
        place: device and type.
        model: a graph in float32.
        in_place: outputs that overwrite an input on the device; not in bfloat16, which NumPy lacks.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if place.device != "cpu":
        # Without a kernel on the device, the CPU would compute silently.
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = ort.InferenceSession(
        _typed(model, place.dtype).SerializeToString(),
        options,
        providers=[(PROVIDERS[place.device], OPTIONS[place.device])],
    )
    over = in_place or {}
    names = [value.name for value in session.get_outputs()]

    def run(inputs: Arrays) -> list[NDArray[np.float32]]:
        binding = session.io_binding()
        tensors = {name: _rounded(array, place.dtype) for name, array in inputs.items()}
        values = {
            name: ort.OrtValue.ortvalue_from_numpy(tensor.numpy().copy(), place.device)
            if name in over.values()
            else ort.OrtValue.from_dlpack(tensor)
            for name, tensor in tensors.items()
        }
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name in names:
            if name in over:
                binding.bind_ortvalue_output(name, values[over[name]])
            else:
                binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        return [_widened(value) for value in binding.get_outputs()]

    return run


def rounded(run: Run, dtype: str) -> Run:
    """A reference in float32 of inputs rounded to another type."""

    def run_rounded(inputs: Arrays) -> list[NDArray[np.float32]]:
        tensors = {name: _rounded(array, dtype) for name, array in inputs.items()}
        return run(
            {
                name: (tensor.float() if tensor.is_floating_point() else tensor).numpy()
                for name, tensor in tensors.items()
            }
        )

    return run_rounded


def distance(got: Outputs, expected: Outputs) -> float:
    """The largest difference of two lists of arrays, relative to each array's largest number."""
    pairs = zip(got, expected, strict=True)
    # Python's own `max` would skip NaN.
    return float(np.max([np.abs(a - b).max() / np.abs(b).max() for a, b in pairs]))


def _widened(value: Any) -> NDArray[np.float32]:
    if value.data_type() == "tensor(bfloat16)":  # NumPy has none
        return from_dlpack(value).float().numpy()
    return np.array(value.numpy(), np.float32)


def _rounded(array: NDArray[np.generic], dtype: str) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape)
    return tensor.to(ELEMENTS[dtype][1]) if tensor.is_floating_point() else tensor


def _typed(model: ModelProto, dtype: str) -> ModelProto:
    """Replace float32 in a graph with another type."""
    element = ELEMENTS[dtype][0]
    typed = ModelProto()
    typed.CopyFrom(model)
    for value in (*typed.graph.input, *typed.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = element
    for tensor in typed.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(element))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return typed
