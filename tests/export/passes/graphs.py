"""Graphs whose weights are elsewhere, and their results."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx_ir.tensor_adapters import to_torch_dtype
from tests.export.memory_weights import MemoryWeights
from torch import Tensor

from ortolan.export.derived import DerivedWeights, recipes_of
from ortolan.export.values import add_initializer, name_of, static_shape, type_of

HEADER = '<ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>'

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A pass, the graphs that it rewrites, and the graphs that it must leave alone.

    Attributes:
        make: returns the pass.
        rewritten: graphs by name, each with the operators afterwards.
        kept: graphs by name.
        weights: initializers without data.
        feeds: inputs of the graphs.
        atol: tolerance of the results.
    """

    make: Callable[[], ir.passes.InPlacePass]
    rewritten: Mapping[str, tuple[str, str]]
    kept: Mapping[str, str]
    weights: Mapping[str, Tensor]
    feeds: Mapping[str, NDArray[np.generic]]
    atol: float = 1e-6


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def parsed(text: str, **weights: Tensor) -> ir.Model:
    """A graph; its initializers are those of `text`, and weights without data."""
    # The parser must know every name.
    names = ", ".join(
        f"{ir.DataType.from_numpy(w.numpy().dtype).name.lower()}[{','.join(map(str, w.shape))}] {n}"
        for n, w in weights.items()
    )
    proto = onnx.parser.parse_model(f"{HEADER}\n{text.replace('WEIGHTS', names)}")
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    for node in model.graph:
        for value in node.outputs if "?" in text else ():  # onnx gives unknown axes names
            known = [None if "unk__" in str(axis) else axis for axis in value.shape or ()]
            value.shape = ir.Shape(known)
        if node.op_type == "FusedMatMul":  # onnx does not infer its shape
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


def rewritten(
    rewrite: ir.passes.InPlacePass,
    model: ir.Model,
    weights: Mapping[str, Tensor] | None = None,
    *,
    atol: float = 1e-6,
    **feeds: NDArray[np.generic],
) -> ir.Model:
    """Apply a pass: it changes the graph, but not its results, and nothing the second time."""
    before = run(model, weights or {}, **feeds)
    outputs = [value.name for value in model.graph.outputs]
    assert rewrite(model).modified
    ir.passes.common.RemoveUnusedNodesPass()(model)
    assert [value.name for value in model.graph.outputs] == outputs
    for old, new in zip(before, run(model, weights or {}, **feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=atol)
    assert not rewrite(model).modified
    return model


def assert_kept(rewrite: ir.passes.InPlacePass, model: ir.Model) -> None:
    """Apply a pass that changes nothing."""
    before = operators(model)
    assert not rewrite(model).modified
    assert operators(model) == before


def run(
    model: ir.Model, weights: Mapping[str, Tensor], **feeds: NDArray[np.generic]
) -> list[Array]:
    """The results of a graph, with weights as they are or as recipes make them."""
    source = DerivedWeights(MemoryWeights(**weights), recipes_of([model]))
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
    names = {value.name for value in session.get_inputs()}
    outputs: list[Array] = session.run(None, {n: v for n, v in feeds.items() if n in names})
    return outputs
