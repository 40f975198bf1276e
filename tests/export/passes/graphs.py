"""Graphs whose weights are elsewhere, and what they compute with them."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx_ir.tensor_adapters import to_torch_dtype
from torch import Tensor

from ortolan.export.derived import DerivedWeights, recipes_of
from ortolan.export.values import add_initializer, name_of, static_shape, type_of

HEADER = '<ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>'

Array = NDArray[np.float32]

Fed = NDArray[np.generic]


class Given:
    """Weights in memory."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        return self.tensors[name][start:stop]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def parsed(text: str, **weights: Tensor) -> ir.Model:
    """A graph; its initializers are those of `text`, and weights without data."""
    # The parser wants to know every name.
    names = ", ".join(
        f"{ir.DataType.from_numpy(w.numpy().dtype).name.lower()}[{','.join(map(str, w.shape))}] {n}"
        for n, w in weights.items()
    )
    proto = onnx.parser.parse_model(f"{HEADER}\n{text.replace('WEIGHTS', names)}")
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    for node in model.graph:
        if node.op_type == "FusedMatMul":  # of whose shapes onnx knows nothing
            x, w = node.inputs
            if x is not None and x.shape is not None and w is not None and w.shape is not None:
                node.outputs[0].shape = ir.Shape([*x.shape[:-1], w.shape[0]])
                node.outputs[0].type = x.type
    for value in [value for value in model.graph.inputs if value.name in weights]:
        model.graph.inputs.remove(value)
        dtype, shape = type_of(value), static_shape(value)
        weight = add_initializer(model.graph, name_of(value), dtype, shape)
        value.replace_all_uses_with(weight)
    return model


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def run(
    model: ir.Model, weights: Mapping[str, Tensor], **feeds: NDArray[np.generic]
) -> list[Array]:
    """What a graph gives, with weights as they are or as recipes make them."""
    source = DerivedWeights(Given(weights), recipes_of([model]))
    proto = ir.to_proto(model)
    del proto.graph.initializer[:]
    for name, value in model.graph.initializers.items():
        if value.const_value is not None:
            array = value.const_value.numpy()
        else:
            rows = source.rows(name, 0, source.shape(name)[0])
            array = rows.to(to_torch_dtype(type_of(value))).numpy()
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = {value.name for value in session.get_inputs()}
    given = {name: value for name, value in feeds.items() if name in wanted}
    outputs: list[Array] = session.run(None, given)
    return outputs
