"""Rules for every graph, checked while it is read.

A graph is a program, and some programs kill onnxruntime: a kernel divides by a head count of zero,
a few nested functions expand for minutes. `read` rejects them before onnxruntime sees a byte:

    graph       no settings, subgraphs, sparse tensors, training information; bounded counts
    nodes       known domains, plain attributes, no values that crash a kernel
    attention   head counts that kernels can divide by
    tensors     bytes that fit their shapes               `tensors.external_tensors`

What depends on the manifest, like operators outside the vocabulary, is checked in
`ortolan.runtime.bundle.graph_checks`.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ortolan.runtime import limits
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph.element_types import Node, typed_nodes
from ortolan.runtime.graph.schema import RefusedError, check_count, parse_model, require, text
from ortolan.runtime.graph.summary import AttentionNode, GraphSummary, Value
from ortolan.runtime.graph.tensors import dtype_of, external_tensors
from ortolan.runtime.graph.vocabulary import foreign_forms

_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})

_GROUP_QUERY = "com.microsoft::GroupQueryAttention"

_LINEAR = "com.microsoft::LinearAttention"

_ATTENTION = frozenset(
    {
        _GROUP_QUERY,
        _LINEAR,
        "ai.onnx::Attention",
        "com.microsoft::Attention",
        "com.microsoft::MultiHeadAttention",
        "com.microsoft::PagedAttention",
        "com.microsoft::SparseAttention",
    }
)

_CELLS: Mapping[str, tuple[int, int, Mapping[str, int]]] = {
    "ai.onnx::RNN": (6, 2, {}),
    "ai.onnx::GRU": (6, 2, {"linear_before_reset": 1}),
    "ai.onnx::LSTM": (7, 3, {}),
}
"""The only form of recurrent operators that is allowed: number of inputs (the fifth is left out),
most outputs, and attributes besides the width."""

_SETTINGS = b"ort_config"
"""Metadata that onnxruntime takes session options from if ORT_LOAD_CONFIG_FROM_MODEL is set.

They can turn on profiling, which writes files. No graph needs this word anywhere.
"""

_HEAD_COUNTS = ("num_heads", "kv_num_heads", "q_num_heads")

_ATTRIBUTE_FLOAT, _ATTRIBUTE_INT = 1, 2

_ADVICE = "The graph was not written by Ortolan, or is damaged: export the bundle again."


def read(data: bytes, *, file: str = "graph") -> GraphSummary:
    """Read a serialized ModelProto and check the rules above."""
    try:
        return _read(data)
    except RefusedError as error:
        raise GraphError(f"{file}: {error}. {_ADVICE}") from error


def _read(data: bytes) -> GraphSummary:
    check_count("bytes", len(data), limits.MAX_GRAPH_BYTES)
    require(_SETTINGS not in data, "no settings of onnxruntime", "ort_config")
    model = parse_model(data)
    graph = model.graph
    require(model.HasField("graph"), "an ONNX graph", "a model without one")
    require(not model.training_info, "a graph for inference", "training information")
    require(not graph.sparse_initializer, "dense weights", "a sparse initializer")
    check_count("nodes", len(graph.node), limits.MAX_NODES)
    check_count("initializers", len(graph.initializer), limits.MAX_INITIALIZERS)
    check_count("functions", len(model.functions), limits.MAX_FUNCTIONS)
    check_count("domains", len(model.opset_import), limits.MAX_OPSETS)
    domains = [text(entry.domain) or "ai.onnx" for entry in model.opset_import]
    for number, domain in enumerate(domains):
        require(domain not in domains[:number], "one version per domain", f"two of {domain!r}")
    require("ai.onnx" in domains, "a version of the standard operators", "none")
    for node in graph.node:
        _check_node(node)
    inputs, outputs = _values("inputs", graph.input), _values("outputs", graph.output)
    nodes = typed_nodes(graph)
    external = tuple(external_tensors(graph))
    names = {tensor.name.encode(): tensor.name for tensor in external}
    return GraphSummary(
        inputs=inputs,
        outputs=outputs,
        operators=dict(Counter(node.operator for node in nodes)),
        attention=tuple(_attention(node) for node in nodes if node.operator in _ATTENTION),
        external=external,
        reads=frozenset(
            (node.operator, names[name])
            for node in nodes
            for name in node.message.input
            if name in names
        ),
        functions=_functions(model.functions),
        foreign=foreign_forms(nodes),
    )


def _check_distinct(what: str, names: Collection[object]) -> None:
    require(len(set(names)) == len(names), f"{what} with different names", "a repeated one")


def _operator(node: Any) -> str:
    return f"{text(node.domain) or 'ai.onnx'}::{text(node.op_type)}"


def _values(what: str, entries: Any) -> tuple[Value, ...]:
    check_count(what, len(entries), limits.MAX_GRAPH_VALUES)
    values = []
    for entry in entries:
        name = text(entry.name)
        is_tensor = entry.type.HasField("tensor_type")
        require(is_tensor, f"tensors as {what}", f"another type for {name!r}")
        tensor = entry.type.tensor_type
        dims = tensor.shape.dim
        check_count(f"axes of {name!r}", len(dims), limits.MAX_TENSOR_RANK)
        shape = tuple(_size(name, dim) for dim in dims)
        values.append(Value(name=name, dtype=dtype_of(name, tensor.elem_type)[0], shape=shape))
    _check_distinct(what, [value.name for value in values])
    return tuple(values)


def _size(name: str, dim: Any) -> int | str:
    if not dim.HasField("dim_value"):
        return text(dim.dim_param) or "?"
    if not 0 <= dim.dim_value <= limits.MAX_DIMENSION:
        raise RefusedError(f"sizes of at least 0 for {name!r}", f"{dim.dim_value}")
    return int(dim.dim_value)


def _check_node(node: Any) -> None:
    operator = _operator(node)
    if text(node.domain) not in _DOMAINS:
        raise RefusedError("standard operators or those of com.microsoft", repr(operator))
    for what, entries in (
        ("inputs", node.input),
        ("outputs", node.output),
        ("attributes", node.attribute),
    ):
        check_count(f"{what} of one {operator}", len(entries), limits.MAX_NODE_EDGES)
    _check_distinct(f"attributes of {operator}", [attribute.name for attribute in node.attribute])
    for attribute in node.attribute:
        if attribute.HasField("g") or attribute.graphs:
            raise RefusedError("no subgraphs", f"one in {operator}")
        if attribute.HasField("ref_attr_name"):
            raise RefusedError("attributes with values", f"a reference in {operator}")
        if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
            raise RefusedError("dense constants", f"a sparse one in {operator}")
        # kernels of this domain truncate to 32 bits, then divide by the result
        if node.domain == b"com.microsoft" and not -(2**31) <= attribute.i < 2**31:
            name = text(attribute.name)
            raise RefusedError(f"32 bits for {name!r} of {operator}", f"{attribute.i}")
    if operator in _CELLS:
        _check_cell(operator, node)


def _check_cell(operator: str, node: Any) -> None:
    """Reject other forms of a recurrent operator: its kernel does not check its indices."""
    inputs, outputs, flags = _CELLS[operator]
    present = [number for number, name in enumerate(node.input) if name]
    expected = [number for number in range(inputs) if number != 4]
    require(
        present == expected and len(node.input) == inputs and len(node.output) <= outputs,
        f"{inputs} inputs without the fifth, and at most {outputs} outputs, in {operator}",
        "others",
    )
    attributes = {text(a.name): a.i for a in node.attribute if a.type == _ATTRIBUTE_INT}
    width = attributes.pop("hidden_size", 0)
    most = limits.MAX_CELL_WIDTH
    require(1 <= width <= most, f"a hidden_size of 1 to {most} in {operator}", f"{width}")
    is_allowed = attributes == flags and len(node.attribute) == 1 + len(flags)
    require(is_allowed, f"only hidden_size and {dict(flags)} in {operator}", "other attributes")


def _attention(node: Node) -> AttentionNode:
    """Read an attention node and bound the numbers that its kernel divides by."""
    operator = node.operator
    attributes: dict[str, int | float] = {}
    for attribute in node.message.attribute:
        name = text(attribute.name)
        if attribute.type == _ATTRIBUTE_INT:
            attributes[name] = attribute.i
        elif attribute.type == _ATTRIBUTE_FLOAT:
            value = attributes[name] = attribute.f
            require(math.isfinite(value), f"finite numbers for {name!r} of {operator}", f"{value}")
        elif name in _HEAD_COUNTS:
            raise RefusedError(f"an integer for {name!r} of {operator}", "another type")
    required = ("num_heads", "kv_num_heads") if operator == _GROUP_QUERY else ()
    most = limits.MAX_RECURRENCE_HEADS if operator == _LINEAR else limits.MAX_HEADS
    for name in _HEAD_COUNTS:
        if name in required or name in attributes:
            heads = attributes.get(name, "none")
            is_fine = isinstance(heads, int) and 1 <= heads <= most
            require(is_fine, f"1 to {most} for {name!r} of {operator}", f"{heads}")
    kv_heads = attributes.get("kv_num_heads")
    query_heads = attributes.get("num_heads", attributes.get("q_num_heads"))
    if query_heads is not None and kv_heads is not None:
        # in linear attention several key-value heads may share a query head instead
        are_shared = operator == _LINEAR and kv_heads % query_heads == 0
        require(
            query_heads % kv_heads == 0 or are_shared,
            f"a multiple of {kv_heads} key and value heads in {operator}",
            f"{query_heads} heads",
        )
    return AttentionNode(name=text(node.message.name), operator=operator, attributes=attributes)


def _functions(entries: Iterable[Any]) -> tuple[str, ...]:
    """Names of functions; one that calls another could expand exponentially when it is loaded."""
    names = tuple(f"{text(function.domain)}::{text(function.name)}" for function in entries)
    for node in (node for function in entries for node in function.node):
        operator = _operator(node)
        is_plain = operator not in names and text(node.domain) in _DOMAINS
        require(is_plain, "functions of standard operators", repr(operator))
        has_graph = any(entry.HasField("g") or entry.graphs for entry in node.attribute)
        require(not has_graph, "no subgraphs", f"one in {operator} of a function")
    return names
