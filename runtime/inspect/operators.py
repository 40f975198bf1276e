"""Operators and types that a bundle needs, as a configuration file for a reduced onnxruntime.

onnxruntime rewrites a graph before it runs it, and the kernels that it then needs are in neither
the bundle nor its manifest: `x * sigmoid(x)` becomes `com.microsoft::QuickGelu`. So the file lists
the operators of each graph as exported and as this onnxruntime runs it on this processor.

Source of the format: `onnxruntime/tools/reduced_build_config_parser.py`; of the operators with
types: `onnxruntime/tools/ort_format_model/operator_type_usage_processors.py`; onnxruntime 1.31.
"""

import json
import platform
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ortolan import files
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.engine.ort_session import save_optimized
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph.element_types import Node, typed_nodes
from ortolan.runtime.graph.schema import RefusedError, parse_model, text


class Tracked(NamedTuple):
    """Inputs and outputs of an operator whose types decide which code is needed."""

    inputs: tuple[int, ...] = (0,)
    outputs: tuple[int, ...] = ()


_BY_FIRST_INPUT = """
    Abs Add ArgMax ArgMin AveragePool BatchNormalization BitShift Ceil Clip Concat Conv CumSum
    DequantizeLinear Div Equal Exp Expand Floor Gemm Greater IsNaN Less Log LogSoftmax
    LpNormalization MatMul Max MaxPool Mean Min Mul Neg NonZero Pad QLinearConv QLinearMatMul Range
    Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare Relu Resize ReverseSequence RoiAlign Round Scatter
    ScatterElements ScatterND Shrink Sigmoid Sign Sin Softmax Split SplitToSequence Sqrt Sub Sum
    Tanh TopK Transpose Unique
"""

TRACKED: Mapping[str, Tracked] = {
    **{f"ai.onnx::{name}": Tracked() for name in _BY_FIRST_INPUT.split()},
    **{f"ai.onnx::{name}": Tracked(inputs=(0, 1)) for name in ("Gather", "GatherElements")},
    **{f"ai.onnx::{name}": Tracked(inputs=(0, 1)) for name in ("Pow", "Slice")},
    "ai.onnx::Cast": Tracked(outputs=(0,)),
    "ai.onnx::ConstantOfShape": Tracked(inputs=(), outputs=(0,)),
    "ai.onnx::DynamicQuantizeLinear": Tracked(inputs=(), outputs=(0,)),
    "ai.onnx::QuantizeLinear": Tracked(inputs=(), outputs=(0,)),
    "ai.onnx::Where": Tracked(inputs=(1,)),
}
"""Operators whose code onnxruntime can reduce by type. All types of the others stay."""

_CPP: Mapping[str, str] = {
    "bfloat16": "BFloat16",
    "bool": "bool",
    "float16": "MLFloat16",
    "float32": "float",
    "float64": "double",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""C++ types by element type."""

Operators = dict[tuple[str, int], dict[str, dict[str, Any] | None]]
"""By domain and version: operators, and their types as the file has them, if they are tracked."""


def required_operators(bundle: Bundle, scratch: Path) -> Operators:
    """Return the operators of all graphs, as exported and as onnxruntime runs them on the CPU."""
    versions: dict[tuple[str, int], set[str]] = defaultdict(set)
    # of all versions: the last entry in a file wins
    types: dict[str, set[tuple[str, int, str]]] = defaultdict(set)
    for role, graph in bundle.manifest.graphs.items():
        folder = scratch / role
        files.make_folder(folder)
        saved = save_optimized(bundle, graph, folder)
        for data in (bundle.read(graph.file), saved.read_bytes()):
            for node, domain, version in _nodes(graph.file, data):
                versions[domain, version].add(node.operator)
                types[node.operator].update(_tracked(node))
        files.remove_folder(folder)
    return {
        key: {name.partition("::")[2]: _entry(types[name]) for name in sorted(versions[key])}
        for key in sorted(versions)
    }


def _tracked(node: Node) -> Iterator[tuple[str, int, str]]:
    """Side, index and element type of the inputs and outputs that decide which code is needed."""
    tracked = TRACKED.get(node.operator, Tracked(inputs=()))
    for side, indices, dtypes in (
        ("inputs", tracked.inputs, node.input_types),
        ("outputs", tracked.outputs, node.output_types),
    ):
        yield from ((side, index, dtypes[index]) for index in indices if dtypes[index : index + 1])


def _entry(types: set[tuple[str, int, str]]) -> dict[str, Any] | None:
    """C++ types by side and index; `None` stands for any."""
    entry: dict[str, dict[str, list[str]]] = {}
    for side, index, dtype in sorted(types):
        if dtype and dtype not in _CPP:
            return None
        if dtype:
            entry.setdefault(side, {}).setdefault(str(index), []).append(_CPP[dtype])
    return {
        side: {index: sorted(names) for index, names in places.items()}
        for side, places in entry.items()
    } or None


def write_operators(bundle: Bundle, path: Path) -> Operators:
    """Write the configuration file, and return its contents."""
    path = files.destination(path)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".operators-") as scratch:
        operators = required_operators(bundle, Path(scratch))
    with files.replaced(path) as file:
        file.write("".join(f"{line}\n" for line in _lines(bundle, operators)).encode())
    return operators


def _nodes(name: str, data: bytes) -> Iterator[tuple[Node, str, int]]:
    """Yield the nodes of a graph with their domains and the versions of these."""
    try:
        model = parse_model(data)
        opsets = {text(entry.domain) or "ai.onnx": entry.version for entry in model.opset_import}
        nodes = typed_nodes(model.graph)
    except RefusedError as error:
        raise GraphError(
            f"{name}: the graph that onnxruntime {onnxruntime_version()} runs cannot be read: "
            f"{error}. List its operators with onnxruntime's own tools."
        ) from error
    for node in nodes:
        domain = node.operator.partition("::")[0]
        yield node, domain, opsets.get(domain, 1)


def _lines(bundle: Bundle, operators: Operators) -> Iterator[str]:
    manifest = bundle.manifest
    yield f"# Operators and types of a bundle: {manifest.provenance.model_type} {manifest.kind},"
    yield f"# {manifest.precision}, as onnxruntime {onnxruntime_version()} runs it on"
    yield f"# {platform.machine()}. For a build with --include_ops_by_config and"
    yield "# --enable_reduced_operator_type_support."
    for (domain, version), entries in operators.items():
        names = [name + (json.dumps(kinds) if kinds else "") for name, kinds in entries.items()]
        yield f"{domain};{version};{','.join(names)}"
