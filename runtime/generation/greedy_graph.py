"""A graph that writes a whole text: that of a decode step, as the body of a `Loop`.

The most probable token of a step is the input of the next one, within one call of onnxruntime. What
lies between two calls, Python for the most part, is a sixth of the time of a small translator
(docs/adr/0012).

A graph for one row behind one source:

    limit             int64 ()      most new tokens
    allowed           float32 (V,)  added to the logits: 0, or -inf for an id never to choose
    going_on          bool (V,)     false for an id that ends the text
    start             int64 (1, 1)  what the text begins with
    source_lengths, and the states of the source: as a step takes them
    -> tokens         int64 (T, 1, 1)
       sums           float32 (T, 1, 1), of all logits of a step: finite if these are

The greatest logit wins, the lowest id where several are equal.

Made in memory, of a graph that has been checked. Bundles may hold no `Loop`. Spec: ai.onnx Loop-24.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from ortolan.runtime.bundle.interface import IDS, LOGITS, SOURCE_LENGTHS, STEP_INPUTS
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.graph.schema import new_message, parse_model
from ortolan.runtime.graph.summary import GraphSummary

__all__ = [
    "ALLOWED",
    "GOING_ON",
    "LIMIT",
    "START",
    "SUMS",
    "TOKENS",
    "can_repeat",
    "repeated",
]

LIMIT, ALLOWED, GOING_ON, START = "limit", "allowed", "going_on", "start"
"""Inputs that a step does not have."""

TOKENS, SUMS = "tokens", "sums"
"""Outputs that a step does not have."""

_FIRST = "first/"
"""Before the names of what the first step takes: states of no tokens."""

_LAST = "last/"
"""Before the names of what the last step gives."""

_, _LAST_INDEX, _TOTAL, _POSITIONS = STEP_INPUTS

_OWN = "greedy/"
"""Before the names of what is added to the body: no exporter writes such names."""

_NO_TOKENS = {"batch": 1, "capacity": 0}
"""Sizes of a state before the first token."""

_FLOAT, _INT32, _INT64, _BOOL = 1, 6, 7, 9
"""Element types, as ONNX counts them."""

_ATTRIBUTE_INT, _ATTRIBUTE_GRAPH = 2, 5


def can_repeat(manifest: Manifest, step: GraphSummary) -> bool:
    """Whether a step can be the body of a loop whose states grow by a token in each turn.

    Args:
        manifest: of the bundle.
        step: the graph of its role `decode` or `decoder`.
    """
    grows = all(state.update in ("append", "source") for state in manifest.states)
    needs_capacity = "ai.onnx::TensorScatter" in step.operators
    return grows and not needs_capacity


def repeated(data: bytes, manifest: Manifest) -> bytes:
    """The graph that repeats a step.

    Args:
        data: the graph of a step behind a source, checked.
        manifest: of its bundle; `can_repeat` is true of both.
    """
    model = parse_model(data)
    step, inputs = model.graph, {value.name.decode(): value for value in model.graph.input}
    states = [state for state in manifest.states if state.update == "append"]
    read = [state.input for state in manifest.states if state.update == "source"]
    whole = new_message("Graph")
    whole.name = b"greedy"
    for name, dtype, shape in (
        (LIMIT, _INT64, ()),
        (ALLOWED, _FLOAT, (manifest.vocab_size,)),
        (GOING_ON, _BOOL, (manifest.vocab_size,)),
        (START, _INT64, (1, 1)),
    ):
        _declare(whole.input, name, dtype, shape)
    whole.input.extend(inputs[name] for name in (SOURCE_LENGTHS, *read))
    whole.initializer.add(name=_POSITIONS.encode(), data_type=_INT64, dims=[1, 1], int64_data=[0])
    first = _FIRST + _LAST_INDEX
    whole.initializer.add(name=first.encode(), data_type=_INT32, dims=[1], int32_data=[0])
    taken = [START, first]
    for state in states:
        taken.append(_FIRST + state.input)
        whole.initializer.add(
            name=taken[-1].encode(),
            data_type=inputs[state.input].type.tensor_type.elem_type,
            dims=[_NO_TOKENS[n] if isinstance(n, str) else n for n in state.shape],
        )
    given = [_LAST + name for name in (IDS, _LAST_INDEX, *(state.output for state in states))]
    loop = _node(whole, "Loop", [LIMIT, "", *taken], [*given, TOKENS, SUMS])
    outputs = {value.name.decode(): value for value in step.output}
    body = _body(step, inputs, outputs, manifest)
    loop.attribute.add(name=b"body", type=_ATTRIBUTE_GRAPH, g=body.SerializeToString())
    _declare(whole.output, TOKENS, _INT64, ("turns", 1, 1))
    _declare(whole.output, SUMS, _FLOAT, ("turns", 1, 1))
    model.graph.CopyFrom(whole)
    made: bytes = model.SerializeToString()
    return made


def _body(step: Any, inputs: Any, outputs: Any, manifest: Manifest) -> Any:
    """One turn: counts, the step, the choice of its token, and whether to go on."""
    states = [state for state in manifest.states if state.update == "append"]
    body = new_message("Graph")
    body.name = b"step"
    body.initializer.extend(step.initializer)
    one = body.initializer.add(name=(_OWN + "one").encode(), data_type=_INT32)
    one.int32_data.append(1)
    vocabulary = body.initializer.add(
        name=(_OWN + "vocabulary").encode(), data_type=_INT64, dims=[1]
    )
    vocabulary.int64_data.append(2)
    for name, dtype, shape in (
        (_OWN + "turn", _INT64, ()),
        (_OWN + "goes", _BOOL, ()),
        (IDS, _INT64, (1, 1)),
        (_LAST_INDEX, _INT32, (1,)),
    ):
        _declare(body.input, name, dtype, shape)
    for state in states:
        _grow(body.input.add(), inputs[state.input], state.input, "past")
    _node(body, "Add", [_LAST_INDEX, _OWN + "one"], [_OWN + "index"])
    _node(body, "Squeeze", [_OWN + "index"], [_TOTAL])
    body.node.extend(step.node)
    _node(body, "Add", [LOGITS, ALLOWED], [_OWN + "scores"])
    _node(body, "ArgMax", [_OWN + "scores"], [_OWN + "token"], axis=2, keepdims=0)
    _node(body, "ReduceSum", [LOGITS, _OWN + "vocabulary"], [_OWN + "sum"], keepdims=0)
    # an array of one number is a scalar to the kernel, and a node less in each turn
    _node(body, "Gather", [GOING_ON, _OWN + "token"], [_OWN + "go"])
    _declare(body.output, _OWN + "go", _BOOL, (1, 1))
    _declare(body.output, _OWN + "token", _INT64, (1, 1))
    _declare(body.output, _OWN + "index", _INT32, (1,))
    for state in states:
        _grow(body.output.add(), outputs[state.output], state.output, "present")
    _declare(body.output, _OWN + "token", _INT64, (1, 1))
    _declare(body.output, _OWN + "sum", _FLOAT, (1, 1))
    return body


def _node(
    graph: Any, operator: str, inputs: Iterable[str], outputs: Iterable[str], **attributes: int
) -> Any:
    """Append a node of ai.onnx."""
    node = graph.node.add(op_type=operator.encode())
    node.input.extend(name.encode() for name in inputs)
    node.output.extend(name.encode() for name in outputs)
    for name, value in attributes.items():
        node.attribute.add(name=name.encode(), type=_ATTRIBUTE_INT, i=value)
    return node


def _declare(values: Any, name: str, dtype: int, shape: Sequence[int | str]) -> None:
    """Append an input or an output; a text in a shape names a size."""
    kind = values.add(name=name.encode()).type.tensor_type
    kind.elem_type = dtype
    kind.shape.SetInParent()
    for size in shape:
        if isinstance(size, int):
            kind.shape.dim.add(dim_value=size)
        else:
            kind.shape.dim.add(dim_param=size.encode())


def _grow(value: Any, like: Any, name: str, tokens: str) -> None:
    """Fill in a state whose capacity is the number of its tokens, which has a name of its own.

    onnxruntime would take two states for equally large if both sizes had one name.
    """
    value.CopyFrom(like)
    value.name = name.encode()
    for size in value.type.tensor_type.shape.dim:
        if size.dim_param == b"capacity":
            size.dim_param = tokens.encode()
