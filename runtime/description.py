"""What a bundle holds and what running it takes, in numbers.

Knows manifests and graphs. Loads no session: a bundle can be described where it cannot run.
"""

from collections import Counter
from typing import Any

import msgspec

from ortolan.runtime.bundle import Bundle
from ortolan.runtime.manifest import QuantizedTensor, State
from ortolan.runtime.onnx_graph import GraphSummary

__all__ = ["AttentionKind", "Description", "GraphDescription", "describe"]

_ITEM_BYTES = {"float32": 4, "float16": 2}


class AttentionKind(msgspec.Struct, frozen=True, kw_only=True):
    """Attention nodes of a graph that are alike.

    Attributes:
        lowering: `fused` for a kernel alone, `portable` for one whose body the graph carries,
            `standard` for an operator of ONNX itself.
    """

    operator: str
    lowering: str
    attributes: dict[str, int | float]
    count: int


class GraphDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One graph: nodes by kind, most frequent first."""

    file: str
    bytes: int
    nodes: dict[str, int]
    attention: tuple[AttentionKind, ...]


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle in numbers.

    Attributes:
        weight_bytes: on disk; the runtime maps them.
        prefill_only_bytes: of these, what no graph but that for prefill reads.
        cache_bytes_per_token: of one conversation.
        context: the length that `memory_bytes` is for.
        memory_bytes: weights, their packed copy, cache and logits: an estimate from above.
        quantized: weights that are stored in few bits, the largest error first.
    """

    kind: str
    precision: str
    model_type: str
    devices: tuple[str, ...]
    context_length: int
    vocab_size: int
    total_bytes: int
    weight_bytes: int
    prefill_only_bytes: int
    cache_bytes_per_token: int
    context: int
    memory_bytes: int
    graphs: dict[str, GraphDescription]
    files: dict[str, int]
    quantized: tuple[QuantizedTensor, ...]


def describe(bundle: Bundle, *, context: int | None = None) -> Description:
    """Describe a bundle.

    Args:
        bundle: opened and checked.
        context: tokens to plan memory for; the model's whole context by default.
    """
    manifest = bundle.manifest
    length = manifest.context_length if context is None else context
    files = {file.name: file.size for file in manifest.files}
    weights = sum(files[name] for name in manifest.weights)
    per_token = sum(_bytes_per_token(state) for state in manifest.states)
    reads = {role: _places(graph) for role, graph in bundle.graphs.items()}
    others = set().union(*(places for role, places in reads.items() if role != "prefill"))
    # Matrices are packed at load, once a graph, beside the mapped file.
    packed = sum(length for places in reads.values() for _, _, length in places)
    logits = 4 * manifest.vocab_size
    return Description(
        kind=manifest.kind,
        precision=manifest.precision,
        model_type=manifest.provenance.model_type,
        devices=manifest.devices,
        context_length=manifest.context_length,
        vocab_size=manifest.vocab_size,
        total_bytes=sum(files.values()),
        weight_bytes=weights,
        prefill_only_bytes=sum(length for _, _, length in reads.get("prefill", set()) - others),
        cache_bytes_per_token=per_token,
        context=length,
        memory_bytes=weights + packed + per_token * length + logits,
        graphs={role: _describe_graph(bundle, role, files) for role in manifest.graphs},
        files=files,
        quantized=tuple(sorted(manifest.quantized, key=lambda tensor: -tensor.error)),
    )


def _places(graph: GraphSummary) -> set[tuple[str, int, int]]:
    """File, offset and length of everything that a graph reads, each place once."""
    return {(tensor.file, tensor.offset, tensor.length) for tensor in graph.external}


def _bytes_per_token(state: State) -> int:
    """Bytes that one more token takes in a state; none in one of fixed size."""
    if "capacity" not in state.shape:
        return 0
    count = _ITEM_BYTES[state.dtype]
    for size in state.shape:
        count *= size if isinstance(size, int) else 1
    return count


def _describe_graph(bundle: Bundle, role: str, files: dict[str, int]) -> GraphDescription:
    graph, name = bundle.graphs[role], bundle.manifest.graphs[role].file
    bodies = {f"{function.domain}::{function.name}" for function in graph.functions}
    kinds: Counter[Any] = Counter(
        (node.operator, tuple(sorted(node.attributes.items()))) for node in graph.attention
    )
    return GraphDescription(
        file=name,
        bytes=files[name],
        nodes=dict(Counter(graph.operators).most_common()),
        attention=tuple(
            AttentionKind(
                operator=operator,
                lowering=_lowering(operator, bodies),
                attributes=dict(attributes),
                count=count,
            )
            for (operator, attributes), count in kinds.items()
        ),
    )


def _lowering(operator: str, bodies: set[str]) -> str:
    if operator in bodies:
        return "portable"
    return "standard" if operator.startswith("ai.onnx::") else "fused"
