"""Whether graphs that take everything at once fit the sizes that the manifest gives.

Knows the inputs and outputs of a graph by name, type and shape. Does not know what it computes,
nor what it gives in the end: a size that is only a name fits every number.
"""

from collections.abc import Iterable

from ortolan.runtime.bundle.kinds import MAPS_ROLE
from ortolan.runtime.bundle.manifest import ImageSource, Manifest, Output, State
from ortolan.runtime.errors import GraphError
from ortolan.runtime.graph.summary import GraphSummary, Value

__all__ = ["check_shapes"]

Shape = tuple[int | str, ...]

_ADVICE = "The graph belongs to another bundle, or is damaged: export the bundle again."


def check_shapes(role: str, graph: GraphSummary, manifest: Manifest, *, file: str) -> None:
    """Check inputs and outputs of an encoder, or of a graph of attention maps.

    Args:
        role: as in the manifest; other roles are not looked at.
        graph: what it holds.
        manifest: of its bundle.
        file: its name, for the text of an error.

    Raises:
        GraphError: an input or output is missing, of another type, or of another size.
    """
    if role not in ("encoder", MAPS_ROLE):
        return
    expected = _inputs(manifest) if manifest.source is not None else {}
    _check_values(file, "input", expected, graph.inputs)
    if role == MAPS_ROLE:
        shape: Shape = ("batch", "heads", "queries", "keys")
        outputs = {name: ("float32", shape) for name in manifest.attention_maps}
    elif manifest.output is not None:
        outputs = {"output": ("float32", _output(manifest.output))}
    else:
        outputs = dict(_source_states(manifest.states))
    _check_values(file, "output", outputs, graph.outputs)


def _inputs(manifest: Manifest) -> dict[str, tuple[str, Shape]]:
    match manifest.source:
        case ImageSource(channels=channels, height=height, width=width):
            return {"pixels": ("float32", ("batch", channels, height, width))}
        case _:
            return {"input_ids": ("int64", ("batch", "tokens")), "lengths": ("int32", ("batch",))}


def _output(output: Output) -> Shape:
    by_token = output.kind in ("states", "logits")
    return ("batch", "tokens", output.size) if by_token else ("batch", output.size)


def _source_states(states: Iterable[State]) -> Iterable[tuple[str, tuple[str, Shape]]]:
    return (
        (state.output, (state.dtype, state.shape)) for state in states if state.update == "source"
    )


def _check_values(
    file: str, what: str, expected: dict[str, tuple[str, Shape]], values: Iterable[Value]
) -> None:
    found = {value.name: value for value in values}
    for name, (dtype, shape) in expected.items():
        value = found.get(name)
        if value is None or value.dtype != dtype or not _fits(shape, value.shape):
            got = "none" if value is None else f"{value.dtype} {value.shape}"
            raise GraphError(
                f"{file}: expected the {what} {name!r} as {dtype} {shape}, got {got}. {_ADVICE}"
            )


def _fits(expected: Shape, got: Shape) -> bool:
    """Whether every size that both give as a number is the same."""
    pairs = zip(expected, got, strict=False)
    is_same = all(
        left == right for left, right in pairs if isinstance(left, int) and isinstance(right, int)
    )
    return len(expected) == len(got) and is_same
