"""Random codes, their values in NumPy, and small graphs for trying kernels."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from torch import Tensor

from ortolan.export.options import GROUP_SIZES
from ortolan.export.quantize.blocks import Codes, pack, pack_zeros
from ortolan.export.scheme import BITS, Scheme

Array = NDArray[Any]

SCHEMES = [
    Scheme(bits=bits, group=group, symmetric=symmetric)  # type: ignore[arg-type]
    for bits, group, symmetric in itertools.product(BITS, GROUP_SIZES, (True, False))
]

FOUR_BITS = [scheme for scheme in SCHEMES if scheme.bits == 4]


def label(scheme: Scheme) -> str:
    return f"{scheme.bits}x{scheme.group}{'' if scheme.symmetric else ' with zero points'}"


def random_codes(scheme: Scheme, *, rows: int, inputs: int) -> Codes:
    """Random codes, with scales of both signs."""
    chance = torch.Generator().manual_seed(inputs * rows + scheme.group + scheme.bits)
    shape = (rows, scheme.groups(inputs))

    def integers(shape: tuple[int, int]) -> Tensor:
        return torch.randint(0, scheme.largest + 1, shape, generator=chance, dtype=torch.uint8)

    signs = torch.randint(0, 2, shape, generator=chance) * 2 - 1
    return Codes(
        values=integers((rows, inputs)),
        scales=(torch.rand(shape, generator=chance) + 0.5) * signs,
        zeros=None if scheme.symmetric else integers(shape),
        scheme=scheme,
    )


def meaning(codes: Codes) -> NDArray[np.float32]:
    """The weight `(N, K)` of codes, by definition."""
    rows, inputs = codes.values.shape
    weight = np.empty((rows, inputs), np.float32)
    for row, column in np.ndindex(rows, inputs):
        group = column // codes.scheme.group
        zero = codes.scheme.middle if codes.zeros is None else int(codes.zeros[row, group])
        weight[row, column] = (int(codes.values[row, column]) - zero) * codes.scales[row, group]
    return weight


def packed(codes: Codes) -> dict[str, Array]:
    """Inputs of kernels, by name."""
    zeros = pack_zeros(codes)
    arrays = {"codes": pack(codes).numpy(), "scales": codes.scales.numpy()}
    return arrays if zeros is None else arrays | {"zeros": zeros.numpy()}


def constant(name: str, array: Array) -> TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array), name)


def raw_constant(name: str, element: int, dims: Sequence[int], data: Array) -> TensorProto:
    """A tensor of a type that NumPy lacks, from its bytes."""
    return TensorProto(name=name, data_type=element, dims=dims, raw_data=data.tobytes())


def matmul_nbits(codes: Codes, inputs: Sequence[str], *, accuracy_level: int) -> NodeProto:
    rows, width = codes.values.shape
    return helper.make_node(
        "MatMulNBits",
        inputs,
        ["y"],
        domain="com.microsoft",
        K=width,
        N=rows,
        bits=codes.scheme.bits,
        block_size=codes.scheme.group,
        accuracy_level=accuracy_level,
    )


def gather_block_quantized(codes: Codes, inputs: Sequence[str], output: str) -> NodeProto:
    return helper.make_node(
        "GatherBlockQuantized",
        inputs,
        [output],
        domain="com.microsoft",
        bits=codes.scheme.bits,
        block_size=codes.scheme.group,
        gather_axis=0,
        quantize_axis=1,
    )


def graph(
    nodes: Sequence[NodeProto], constants: Sequence[TensorProto], feeds: Mapping[str, Array]
) -> onnx.ModelProto:
    """A model whose outputs are the values that no node reads."""
    read = {name for node in nodes for name in node.input}
    outputs = [name for node in nodes for name in node.output if name not in read]
    made = helper.make_graph(
        nodes,
        "low_bit",
        [_value(name, array) for name, array in feeds.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        constants,
    )
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=11)


def run(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    *,
    optimized: Path | None = None,
    exact_products: bool = False,
) -> list[Array]:
    """Run a model in onnxruntime, with float activations if `exact_products`."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if exact_products:
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    if optimized is not None:
        options.log_severity_level = 3
        options.optimized_model_filepath = str(optimized)
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    outputs: list[Array] = session.run(None, dict(feeds))
    return outputs


def _value(name: str, array: Array) -> ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, element, array.shape)
