"""Contents and memory needs of a bundle, without loading it."""

from collections import Counter
from dataclasses import asdict
from typing import Any

import msgspec

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import QuantizedTensor
from ortolan.runtime.bundle.quality import Quality
from ortolan.runtime.bundle.witness import Witness
from ortolan.runtime.engine.memory_plan import MemoryPlan, plan_memory
from ortolan.runtime.errors import SamplingError
from ortolan.runtime.generation.recommended import Recommendation, recommendation
from ortolan.runtime.generation.sampling_options import Sampling

_PLAIN = "ai.onnx::Softmax"
"""Counts attention that is spelled out in plain operators."""


_OF_MANIFEST = (
    *("kind", "takes", "gives", "attention_maps", "has_head", "precision", "devices"),
    *("unverified", "quality", "witness", "context_length", "vocab_size"),
)


class AttentionKind(msgspec.Struct, frozen=True, kw_only=True):
    """Equal attention nodes of a graph.

    Attributes:
        lowering: `fused` for a kernel without a body in the graph, `portable` for one with a body,
            `standard` for an operator of ONNX, `plain` for attention spelled out in operators,
            counted by its softmax.
    """

    operator: str
    lowering: str
    attributes: dict[str, int | float]
    count: int


class GraphDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One graph, with nodes by kind, most frequent first."""

    file: str
    bytes: int
    nodes: dict[str, int]
    attention: tuple[AttentionKind, ...]


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle in numbers. Fields not listed here are those of the manifest.

    Attributes:
        unverified: why the export was not verified, if so.
        attention_maps: names of the maps that `ortolan attention` draws.
        prefill_only_bytes: weights that only the prefill graph reads.
        cache_bytes_per_token: KV cache of one sequence.
        source_bytes_per_token: what a decoder keeps of its source.
        memory_bytes: upper estimate of the sum of `memory`.
        quantized: low-bit weights, largest error first.
        sampling: recommended options that differ from greedy decoding.
        not_applied: other settings in `generation_config.json`.
        sampling_error: why that file cannot be used, if so.
    """

    kind: str
    takes: str
    gives: str
    labels: tuple[str, ...]
    attention_maps: tuple[str, ...]
    has_head: bool
    precision: str
    model_type: str
    devices: tuple[str, ...]
    unverified: str | None
    quality: Quality | None
    witness: Witness | None
    context_length: int
    vocab_size: int
    total_bytes: int
    weight_bytes: int
    prefill_only_bytes: int
    cache_bytes_per_token: int
    source_bytes_per_token: int
    memory: MemoryPlan
    memory_bytes: int
    graphs: dict[str, GraphDescription]
    files: dict[str, int]
    quantized: tuple[QuantizedTensor, ...]
    calibrated_on: str | None
    sampling: dict[str, float]
    not_applied: dict[str, Any]
    sampling_error: str | None


def describe(
    bundle: Bundle, *, context: int | None = None, batch: int = 1, device: str | None = None
) -> Description:
    """Describe a bundle."""
    manifest = bundle.manifest
    length = manifest.context_length if context is None else context
    files = {file.name: file.size for file in manifest.files}
    plan = plan_memory(
        manifest,
        bundle.graphs,
        context=length,
        batch=batch,
        device=device or ("cuda" if manifest.devices[0] == "cuda" else "cpu"),
    )
    reads = {role: graph.places for role, graph in bundle.graphs.items()}
    elsewhere = set().union(*(places for role, places in reads.items() if role != "prefill"))
    return Description(
        **{name: getattr(manifest, name) for name in _OF_MANIFEST},
        labels=() if manifest.output is None else manifest.output.labels,
        model_type=manifest.provenance.model_type,
        total_bytes=sum(files.values()),
        weight_bytes=plan.weights,
        prefill_only_bytes=sum(length for _, _, length in reads.get("prefill", set()) - elsewhere),
        cache_bytes_per_token=manifest.state_bytes("append"),
        source_bytes_per_token=manifest.state_bytes("source"),
        memory=plan,
        memory_bytes=plan.total,
        graphs={role: _describe_graph(bundle, role, files) for role in manifest.graphs},
        files=files,
        quantized=tuple(sorted(manifest.quantized, key=lambda tensor: -tensor.error)),
        calibrated_on=manifest.provenance.calibrated_on,
        **_recommended(bundle),
    )


def _recommended(bundle: Bundle) -> dict[str, Any]:
    """Return the fields about sampling."""
    try:
        recommended, error = recommendation(bundle), None
    except SamplingError as broken:
        recommended, error = Recommendation(sampling=Sampling(), not_applied={}), str(broken)
    chosen, greedy = asdict(recommended.sampling), asdict(Sampling())
    return {
        "sampling": {name: value for name, value in chosen.items() if value != greedy[name]},
        "not_applied": dict(recommended.not_applied),
        "sampling_error": error,
    }


def _describe_graph(bundle: Bundle, role: str, files: dict[str, int]) -> GraphDescription:
    graph, name = bundle.graphs[role], bundle.manifest.graphs[role].file
    bodies = set(graph.functions)
    kinds: Counter[Any] = Counter(
        (node.operator, tuple(sorted(node.attributes.items()))) for node in graph.attention
    )
    kinds += Counter({(_PLAIN, ()): graph.operators.get(_PLAIN, 0)})
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
    if operator == _PLAIN:
        return "plain"
    return "standard" if operator.startswith("ai.onnx::") else "fused"
