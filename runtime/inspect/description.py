"""What a bundle holds and what running it takes, in numbers.

No session is loaded: a bundle can be described where it cannot run.
"""

from collections import Counter
from dataclasses import asdict
from typing import Any

import msgspec

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import Manifest, QuantizedTensor
from ortolan.runtime.bundle.quality import Quality
from ortolan.runtime.engine.memory_plan import MemoryPlan, plan_memory
from ortolan.runtime.errors import SamplingError
from ortolan.runtime.generation.recommended import Recommendation, recommendation
from ortolan.runtime.generation.sampling_options import Sampling

__all__ = ["AttentionKind", "Description", "GraphDescription", "describe"]

_PLAIN = "ai.onnx::Softmax"
"""What stands in a graph once for every attention that is spelled out."""


class AttentionKind(msgspec.Struct, frozen=True, kw_only=True):
    """Attention nodes of a graph that are alike.

    Attributes:
        lowering: `fused` for a kernel alone, `portable` for one whose body the graph carries,
            `standard` for an operator of ONNX itself, `plain` for attention that is spelled out
            in others, of which the softmax is counted.
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
        takes: what goes in, in words.
        gives: what comes out, in words.
        labels: those of a classifier.
        unverified: why the export proved nothing; `None` where it did.
        quality: how far it is from the trained model; `None` where that was not measured.
        attention_maps: names of the maps that `ortolan attention` draws.
        weight_bytes: on disk; the runtime maps them.
        prefill_only_bytes: of these, what no graph but that for prefill reads.
        cache_bytes_per_token: of one conversation.
        source_bytes_per_token: of what a decoder reads of its source.
        memory: by what takes it.
        memory_bytes: all of it together, an estimate from above.
        quantized: weights that are stored in few bits, the largest error first.
        calibrated_on: what they were fitted to, in words; `None` where none was.
        sampling: options that the model recommends and that differ from greedy choice.
        not_applied: what else its `generation_config.json` asks for.
        sampling_error: why that file cannot be used; `None` where it can.
    """

    kind: str
    takes: str
    gives: str
    labels: tuple[str, ...]
    attention_maps: tuple[str, ...]
    precision: str
    model_type: str
    devices: tuple[str, ...]
    unverified: str | None
    quality: Quality | None
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
    """Describe a bundle.

    Args:
        bundle: opened and checked.
        context: tokens to plan memory for; the model's whole context by default.
        batch: rows to plan memory for.
        device: `cpu` or `cuda`, to plan memory of; the one that the bundle was made for by
            default.
    """
    manifest = bundle.manifest
    length = manifest.context_length if context is None else context
    files = {file.name: file.size for file in manifest.files}
    plan = plan_memory(
        manifest,
        bundle.graphs,
        context=length,
        batch=batch,
        device=_device_of(manifest) if device is None else device,
    )
    reads = {role: graph.places for role, graph in bundle.graphs.items()}
    others = set().union(*(places for role, places in reads.items() if role != "prefill"))
    return Description(
        kind=manifest.kind,
        takes=manifest.takes,
        gives=manifest.gives,
        labels=() if manifest.output is None else manifest.output.labels,
        attention_maps=manifest.attention_maps,
        precision=manifest.precision,
        model_type=manifest.provenance.model_type,
        devices=manifest.devices,
        unverified=manifest.unverified,
        quality=manifest.quality,
        context_length=manifest.context_length,
        vocab_size=manifest.vocab_size,
        total_bytes=sum(files.values()),
        weight_bytes=plan.weights,
        prefill_only_bytes=sum(length for _, _, length in reads.get("prefill", set()) - others),
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
    """The fields of a description about sampling."""
    try:
        found, error = recommendation(bundle), None
    except SamplingError as broken:
        found, error = Recommendation(sampling=Sampling(), not_applied={}), str(broken)
    chosen, greedy = asdict(found.sampling), asdict(Sampling())
    return {
        "sampling": {name: value for name, value in chosen.items() if value != greedy[name]},
        "not_applied": dict(found.not_applied),
        "sampling_error": error,
    }


def _device_of(manifest: Manifest) -> str:
    """The device that a bundle was made for, among those that memory is planned for."""
    return "cuda" if manifest.devices[0] == "cuda" else "cpu"


def _describe_graph(bundle: Bundle, role: str, files: dict[str, int]) -> GraphDescription:
    graph, name = bundle.graphs[role], bundle.manifest.graphs[role].file
    bodies = {f"{function.domain}::{function.name}" for function in graph.functions}
    kinds: Counter[Any] = Counter(
        (node.operator, tuple(sorted(node.attributes.items()))) for node in graph.attention
    )
    kinds.update({(_PLAIN, ()): graph.operators.get(_PLAIN, 0)})
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
            if count > 0
        ),
    )


def _lowering(operator: str, bodies: set[str]) -> str:
    if operator in bodies:
        return "portable"
    if operator == _PLAIN:
        return "plain"
    return "standard" if operator.startswith("ai.onnx::") else "fused"
