"""Checks that the graphs of a bundle fit its manifest.

A named size fits every number, since actual sizes are only known at run time.
"""

from collections.abc import Iterable

from ortolan.runtime.bundle.interface import (
    FEATURE_ROWS,
    FEATURES,
    HIDDEN,
    LOGITS,
    OUTPUT,
    PREVIOUS,
)
from ortolan.runtime.bundle.kinds import BOTH_WAYS, ENCODER, MAPS_ROLE, STEPPED
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.parts import Features
from ortolan.runtime.bundle.source import (
    POSITIONS,
    TYPES,
)
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph.summary import (
    AttentionNode,
    ExternalTensor,
    GraphSummary,
    Value,
)

Shape = tuple[int | str, ...]

_SELF_ATTENTION = "com.microsoft::GroupQueryAttention"


def check_graph(role: str, graph: GraphSummary, manifest: Manifest, *, file: str) -> None:
    """Check that a graph fits its manifest."""
    _check_operators(file, graph.foreign, manifest)
    _check_external(file, graph.external, manifest)
    if graph.functions and manifest.attention != "portable":
        raise _refused(
            file, f"no functions with {manifest.attention!r} attention", repr(graph.functions[0])
        )
    if role in STEPPED:
        _check_attention(file, graph.attention, is_causal=role != BOTH_WAYS)
    _check_values(file, "input", _inputs(role, manifest), graph.inputs)
    _check_values(file, "output", _outputs(role, manifest), graph.outputs)


def _refused(file: str, expected: str, got: str) -> GraphError:
    # names come from the file, and may be as long as it is
    return GraphError(
        f"{file}: expected {expected[:300]}, got {got[:300]}. "
        "The graph belongs to another bundle, or is damaged: export the bundle again."
    )


def _check_operators(file: str, foreign: Iterable[str], manifest: Manifest) -> None:
    for form in foreign:
        if form not in manifest.foreign_operators:
            raise _refused(file, "operators in forms that Ortolan writes", form)


def _check_external(file: str, tensors: Iterable[ExternalTensor], manifest: Manifest) -> None:
    sizes = {entry.name: entry.size for entry in manifest.files if entry.name in manifest.weights}
    for tensor in tensors:
        if tensor.file not in sizes:
            raise _refused(
                file,
                f"{tensor.name!r} in a weights file of the manifest",
                f"the file {tensor.file!r}",
            )
        end = tensor.offset + tensor.length
        if end > sizes[tensor.file]:
            raise _refused(
                file,
                f"{tensor.name!r} within the {sizes[tensor.file]} bytes of {tensor.file}",
                f"bytes {tensor.offset} to {end}",
            )


def _check_attention(file: str, nodes: Iterable[AttentionNode], *, is_causal: bool) -> None:
    for node in nodes:
        if (
            node.operator == _SELF_ATTENTION
            and (node.attributes.get("causal", 1) != 0) != is_causal
        ):
            seen = "only tokens before it" if is_causal else "all new tokens"
            raise _refused(file, f"attention of a token to {seen}", f"another in {node.name!r}")


def _inputs(role: str, manifest: Manifest) -> dict[str, tuple[str, Shape]]:
    if role not in (ENCODER, MAPS_ROLE):
        states: dict[str, tuple[str, Shape]] = {
            state.input: (state.dtype, state.shape) for state in manifest.states
        }
        previous = _hidden(PREVIOUS, manifest) if manifest.is_head else {}
        return states | _features(manifest.features) | previous
    values = {} if manifest.source is None else manifest.source.inputs()
    return {name: value for name, value in values.items() if role == ENCODER or name != TYPES}


def _features(features: Features | None) -> dict[str, tuple[str, Shape]]:
    if features is None:
        return {}
    inputs: dict[str, tuple[str, Shape]] = {
        FEATURES: ("float32", ("features", features.size)),
        FEATURE_ROWS: ("int64", ("batch", "sequence")),
    }
    if features.positions == "grid":
        inputs[POSITIONS] = ("int64", ("batch", "sequence", 3))
    return inputs


def _hidden(name: str, manifest: Manifest) -> dict[str, tuple[str, Shape]]:
    hidden = manifest.hidden_states
    return {} if hidden is None else {name: ("float32", ("batch", "sequence", hidden.size))}


def _outputs(role: str, manifest: Manifest) -> dict[str, tuple[str, Shape]]:
    if role == MAPS_ROLE:
        shape: Shape = ("batch", "heads", "queries", "keys")
        return {name: ("float32", shape) for name in manifest.attention_maps}
    if role != ENCODER:
        states: dict[str, tuple[str, Shape]] = {
            state.output: (state.dtype, state.shape)
            for state in manifest.states
            if state.update != "source"
        }
        logits: tuple[str, Shape] = ("float32", ("batch", "rows", manifest.vocab_size))
        return states | {LOGITS: logits} | _hidden(HIDDEN, manifest)
    if manifest.output is not None:
        tokens = ("tokens",) if manifest.output_kind.by_token else ()
        return {OUTPUT: ("float32", ("batch", *tokens, manifest.output.size))}
    return {
        state.output: (state.dtype, state.shape)
        for state in manifest.states
        if state.update == "source"
    }


def _check_values(
    file: str, what: str, expected: dict[str, tuple[str, Shape]], values: Iterable[Value]
) -> None:
    by_name = {value.name: value for value in values}
    for name, (dtype, shape) in expected.items():
        value = by_name.get(name)
        if value is None or value.dtype != dtype or not _fits(shape, value.shape):
            got = "none" if value is None else f"{value.dtype} {value.shape}"
            raise _refused(file, f"the {what} {name!r} as {dtype} {shape}", got)


def _fits(expected: Shape, got: Shape) -> bool:
    """Whether both have as many axes, and equal sizes wherever both are numbers."""
    pairs = zip(expected, got, strict=False)
    is_same = all(
        left == right for left, right in pairs if isinstance(left, int) and isinstance(right, int)
    )
    return len(expected) == len(got) and is_same
