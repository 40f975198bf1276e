"""Which weights are stored in how many bits."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal, cast

import onnx_ir as ir

from ortolan.export.errors import OptionError
from ortolan.export.precision import CALIBRATION_SEQUENCES, GROUP_SIZES, GroupSize, Method
from ortolan.export.quantize.blocks import Scheme
from ortolan.export.values import static_shape
from ortolan.modeling.weights import Coded, Weights

_SCALE_BYTES = 4

TABLES = ("embedding", "shared")
"""Layers whose weight is a vector for each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How weights are stored.

    Attributes:
        scheme: of the blocks' products.
        head: of the head and the embedding, which share a table where they are tied.
        method: how the codes of the products are found.
        fits: take smaller groups where the last of a row would be mostly padding.
        exclude: patterns of weights that stay as they are (`fnmatch`).
        calibration_sequences: see `Int8`.
    """

    scheme: Scheme
    head: Scheme
    method: Method
    fits: bool = False
    exclude: tuple[str, ...] = ()
    calibration_sequences: int = CALIBRATION_SEQUENCES


def plan(models: Iterable[ir.Model], options: Quantization, weights: Weights) -> dict[str, Scheme]:
    """The scheme of every weight that is quantized, by the name of its initializer.

    Position tables, norms and biases are not: they are small. What the checkpoint stores in as few
    bits keeps the scheme that it has there.

    Args:
        models: tidied graphs.
        options: what to do.
        weights: of the checkpoint.

    Raises:
        OptionError: a pattern of `exclude` matches no weight.
    """
    matrices = {name: shape for model in models for name, shape in _matrices(model.graph)}
    names = list(matrices)
    unmatched = [
        pattern for pattern in options.exclude if not any(fnmatchcase(n, pattern) for n in names)
    ]
    if unmatched:
        raise OptionError(
            f"exclude: expected patterns of weights, got {unmatched[0]!r}, which matches none. "
            f"There are {', '.join(_examples(names))}."
        )
    return {
        name: _kept(weights, name, scheme_of(name, columns, options))
        for name, (_, columns) in matrices.items()
        if not any(fnmatchcase(name, pattern) for pattern in options.exclude)
    }


def scheme_of(name: str, columns: int, options: Quantization) -> Scheme:
    """The scheme of a weight with rows of so many columns."""
    scheme = options.scheme if _is_block(name) else options.head
    return _fewest_bytes(scheme, columns) if options.fits else scheme


def stored_scheme(weights: Weights, name: str) -> Scheme | None:
    """The scheme in which a checkpoint stores a weight; None where it has no codes for kernels."""
    found = weights.code_format(name) if isinstance(weights, Coded) else None
    if found is None:
        return None
    bits, group = cast(Literal[4, 8], found.bits), cast(GroupSize, found.group)
    return Scheme(bits=bits, group=group, symmetric=found.symmetric)


def _kept(weights: Weights, name: str, planned: Scheme) -> Scheme:
    """The scheme that a weight has already, unless it takes more bits than planned."""
    stored = stored_scheme(weights, name)
    return planned if stored is None or stored.bits > planned.bits else stored


def _fewest_bytes(scheme: Scheme, columns: int) -> Scheme:
    """The scheme with its groups, or smaller ones, whichever make the shortest rows.

    576 columns are 5 groups of 128, the last of them half padding, or 9 groups of 64.
    """

    def row_bytes(candidate: Scheme) -> float:
        return candidate.groups(columns) * (candidate.group * candidate.bits / 8 + _SCALE_BYTES)

    smaller = (replace(scheme, group=group) for group in GROUP_SIZES if group <= scheme.group)
    # Of equal rows, the larger groups: fewer scales to multiply with.
    return min(smaller, key=lambda candidate: (row_bytes(candidate), -candidate.group))


def _is_block(name: str) -> bool:
    """Whether a weight is of a block; the others are tables of tokens, or of a head."""
    return ".blocks." in f".{name}"


def _matrices(graph: ir.Graph) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Weights of products, and tables of tokens, with their shapes."""
    for node in graph:
        weight = node.inputs[1] if node.op_type == "FusedMatMul" else None
        if weight is not None and weight.name:
            yield weight.name, static_shape(weight)
    for name, value in graph.initializers.items():
        layer, _, kind = name.rpartition(".")
        if kind == "weight" and layer.rpartition(".")[2] in TABLES:
            yield name, static_shape(value)


def _examples(names: list[str]) -> list[str]:
    return names[:3] + names[-1:]
