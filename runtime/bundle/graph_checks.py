"""Checks that the graphs of a bundle fit its manifest.

A named size fits every number, since actual sizes are only known at run time.
"""

from collections.abc import Iterable

from ortolan.runtime.bundle.interface import inputs_of, outputs_of
from ortolan.runtime.bundle.kinds import BOTH_WAYS, STEPPED
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.source import Shape, Values
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph.summary import AttentionNode, ExternalTensor, GraphSummary, Value

_SELF_ATTENTION = "com.microsoft::GroupQueryAttention"


def check_graph(role: str, graph: GraphSummary, manifest: Manifest, *, file: str) -> None:
    """Check that a graph fits its manifest."""
    for form in graph.foreign:
        if form not in manifest.foreign_operators:
            raise _refused(file, "operators in forms that Ortolan writes", form)
    _check_external(file, graph.external, manifest)
    if graph.functions and manifest.attention != "portable":
        raise _refused(
            file, f"no functions with {manifest.attention!r} attention", repr(graph.functions[0])
        )
    if role in STEPPED:
        _check_attention(file, graph.attention, is_causal=role != BOTH_WAYS)
    _check_values(file, role, "input", inputs_of(role, manifest), graph.inputs)
    _check_values(file, role, "output", outputs_of(role, manifest), graph.outputs)


def _refused(file: str, expected: str, got: str) -> GraphError:
    # names come from the file, and may be as long as it is
    return GraphError(
        f"{file}: expected {expected[:300]}, got {got[:300]}. "
        "The graph belongs to another bundle, or is damaged: export the bundle again."
    )


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


def _check_values(
    file: str, role: str, what: str, expected: Values, values: Iterable[Value]
) -> None:
    """Check that a graph has exactly the inputs or outputs of its role."""
    by_name = {value.name: value for value in values}
    if by_name.keys() != expected.keys():
        missing = ", ".join(sorted(expected.keys() - by_name.keys())[:4]) or "none"
        surplus = ", ".join(sorted(by_name.keys() - expected.keys())[:4]) or "none"
        raise GraphError(
            f"{file} has the wrong {what}s for the role {role!r}; missing: {missing[:300]}; "
            f"unexpected: {surplus[:300]}. Export the checkpoint again."
        )
    for name, (dtype, shape) in expected.items():
        value = by_name[name]
        if value.dtype != dtype or not _fits(shape, value.shape):
            got = f"{value.dtype} {value.shape}"
            raise _refused(file, f"the {what} {name!r} as {dtype} {shape}", got)


def _fits(expected: Shape, got: Shape) -> bool:
    """Whether both have as many axes, and equal sizes wherever both are numbers."""
    pairs = zip(expected, got, strict=False)
    is_same = all(
        left == right for left, right in pairs if isinstance(left, int) and isinstance(right, int)
    )
    return len(expected) == len(got) and is_same
