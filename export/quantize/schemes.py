"""Which weights are stored in how many bits."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Literal, cast

import onnx_ir as ir

from ortolan.export.errors import OptionError
from ortolan.export.options import GROUP_SIZES, GroupSize
from ortolan.export.scheme import Scheme
from ortolan.export.settings import Quantization
from ortolan.export.values import static_shape
from ortolan.modeling.weights import Coded, Weights
from ortolan.runtime.bundle.interface import IDS, TARGET_IDS

_SCALE_BYTES = 4

NARROW = 2048
"""Columns from which rows have enough inputs for errors to even out (docs/adr/0005)."""

EXPERT_INPUTS = (2, 4)
"""The inputs of a MoE node that are weights: those of gate and up, and of down."""

CELLS = frozenset({"RNN", "GRU", "LSTM"})
"""Operators of a pass over several tokens, whose second and third input are weights."""


def assign_schemes(
    models: Iterable[ir.Model], options: Quantization, weights: Weights | None = None
) -> dict[str, Scheme]:
    """The scheme of every weight that is quantized, by the name of its initializer.

    Position tables, norms, biases and routers are not: they are small. Nor are the weights of
    recurrent cells where a node reads them, which has no form of few bits. Of the experts of a
    layer both weights are, in the same groups, or none is. What the checkpoint stores in as few
    bits keeps the scheme that it has there.

    Args:
        models: tidied graphs.
        options: what to do.
        weights: of the checkpoint; None where it stores none in few bits.

    Raises:
        OptionError: a pattern of `exclude` matches no weight, or no groups divide the rows of
            experts.
    """
    models = list(models)
    of_cells = {name for model in models for name in _of_cells(model.graph)}
    matrices = {
        name: shape
        for model in models
        for name, shape in _matrices(model.graph)
        if name not in of_cells
    }
    experts = {names: widths for model in models for names, widths in _experts(model.graph)}
    names = [*matrices, *(name for both in experts for name in both)]
    unmatched = [
        pattern for pattern in options.exclude if not any(fnmatchcase(n, pattern) for n in names)
    ]
    if unmatched:
        raise OptionError(
            f"exclude: expected patterns of weights, got {unmatched[0]!r}, which matches none. "
            f"There are {', '.join(_examples(names))}."
        )
    planned = {
        name: scheme_of(name, columns, options, weights)
        for name, (_, columns) in matrices.items()
        if not _is_excluded(name, options)
    }
    for both, widths in experts.items():
        if not any(_is_excluded(name, options) for name in both):
            scheme = _dividing(both[0], widths, options)
            # One node has one scheme, and no minimums.
            stored = {_kept(weights, name, scheme, options, has_minimums=False) for name in both}
            planned |= dict.fromkeys(both, stored.pop() if len(stored) == 1 else scheme)
    return planned


def scheme_choices(
    models: Sequence[ir.Model], options: Quantization, weights: Weights | None = None
) -> dict[tuple[str, ...], list[dict[str, Scheme]]]:
    """What there is to choose from: the fewest bytes first, 8 bits last.

    Weights that must be alike, the experts of a layer, are one choice.

    Args:
        models: as for `plan`.
        options: in the fewest bytes.
        weights: as for `plan`.

    Returns:
        By the names of the weights, schemes by name.

    Raises:
        OptionError: as `plan`.
    """
    fine = replace(options.scheme, group=GROUP_SIZES[0])
    exact = replace(options.scheme, bits=8, group=options.head.group)
    plans = [
        assign_schemes(
            models, replace(options, scheme=scheme, head=head, narrow_group=None), weights
        )
        for scheme, head in ((options.scheme, options.head), (fine, fine), (exact, exact))
    ]
    pairs = {name: both for model in models for both, _ in _experts(model.graph) for name in both}
    groups = dict.fromkeys(pairs.get(name, (name,)) for name in plans[0])
    found: dict[tuple[str, ...], list[dict[str, Scheme]]] = {}
    for names in groups:
        offered = [{name: each[name] for name in names} for each in plans]
        found[names] = [each for place, each in enumerate(offered) if each not in offered[:place]]
    return found


def _is_excluded(name: str, options: Quantization) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in options.exclude)


def _dividing(name: str, widths: tuple[int, int], options: Quantization) -> Scheme:
    """The scheme of experts, whose rows have no padding: the largest groups that divide them."""
    most = options.scheme.group
    offered = [group for group in GROUP_SIZES if group <= most] if options.shrink_groups else [most]
    groups = [group for group in offered if not any(width % group for width in widths)]
    if not groups:
        raise OptionError(
            f"{name}: expected rows of experts that groups of {offered[0]} divide, got rows of "
            f"{' and '.join(map(str, widths))}. Leave them as they are: --exclude '*.experts.*'."
        )
    return replace(options.scheme, group=max(groups))


def scheme_of(
    name: str, columns: int, options: Quantization, weights: Weights | None = None
) -> Scheme:
    """The scheme of a weight with rows of so many columns; see `plan`."""
    scheme = options.scheme if is_block(name) else options.head
    if options.narrow_group is not None and is_block(name) and columns < NARROW:
        scheme = replace(scheme, group=options.narrow_group)
    fits = options.shrink_groups or scheme.bits > options.scheme.bits
    fitting = _fewest_bytes(scheme, columns) if fits else scheme
    # Look-ups have no minimums.
    return _kept(weights, name, fitting, options, has_minimums=is_block(name))


def _kept(
    weights: Weights | None,
    name: str,
    planned: Scheme,
    options: Quantization,
    *,
    has_minimums: bool,
) -> Scheme:
    """The scheme that a weight has already, unless it takes more bits or nodes than it may."""
    stored = None if options.reuse == "none" else stored_scheme(weights, name)
    most = planned.bits if is_block(name) else max(planned.bits, options.reuse_head_bits)
    if stored is None or stored.bits > most:
        return planned
    has_place = options.reuse == "all" and has_minimums
    return stored if has_place or not stored.minimums else planned


def stored_scheme(weights: Weights | None, name: str) -> Scheme | None:
    """The scheme in which a checkpoint stores a weight; None where it has no codes for kernels."""
    found = weights.code_format(name) if isinstance(weights, Coded) else None
    if found is None:
        return None
    bits, group = cast(Literal[4, 8], found.bits), cast(GroupSize, found.group)
    return Scheme(bits=bits, group=group, symmetric=found.symmetric, minimums=found.minimums)


def _fewest_bytes(scheme: Scheme, columns: int) -> Scheme:
    """The scheme with its groups, or smaller ones, whichever make the shortest rows.

    576 columns are 5 groups of 128, the last of them half padding, or 9 groups of 64.
    """

    def row_bytes(candidate: Scheme) -> float:
        return candidate.groups(columns) * (candidate.group * candidate.bits / 8 + _SCALE_BYTES)

    smaller = (replace(scheme, group=group) for group in GROUP_SIZES if group <= scheme.group)
    # Of equal rows, the larger groups: fewer scales to multiply with.
    return min(smaller, key=lambda candidate: (row_bytes(candidate), -candidate.group))


def is_block(name: str) -> bool:
    """Whether a weight is of one of several layers; the others are tables, or of a head."""
    return re.search(r"\.\d+\.", f".{name}") is not None


def _matrices(graph: ir.Graph) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Weights of products, and tables of tokens, with their shapes.

    Not those of routers, nor of a single number for each token: they are a few rows, in which an
    error costs much.
    """
    routers = _routers(graph)
    for node in graph:
        weight = node.inputs[1] if node.op_type == "FusedMatMul" else None
        if weight is not None and weight.name and node not in routers:
            rows, columns = static_shape(weight)
            if rows > 1:
                yield weight.name, (rows, columns)
    for node in graph:
        table = node.inputs[0] if node.op_type == "Gather" else None
        ids = node.inputs[1] if table is not None else None
        if table is None or ids is None or not (table.is_initializer() and table.name):
            continue
        if ids.is_graph_input() and ids.name in (IDS, TARGET_IDS):
            yield table.name, static_shape(table)


def _of_cells(graph: ir.Graph) -> Iterator[str]:
    """Weights of the nodes of recurrent cells, which read them in another order of rows."""
    ahead = [value for node in graph if node.op_type in CELLS for value in node.inputs[1:3]]
    while ahead:
        value = ahead.pop()
        maker = None if value is None else value.producer()
        if maker is not None:
            ahead += maker.inputs
        elif value is not None and value.name:
            yield value.name


def _experts(graph: ir.Graph) -> Iterator[tuple[tuple[str, str], tuple[int, int]]]:
    """The two weights of the experts of each layer, and how wide the rows of each are."""
    for node in graph:
        if node.op_type == "MoE":
            first, second = (node.inputs[place] for place in EXPERT_INPUTS)
            if first is not None and second is not None and first.name and second.name:
                widths = static_shape(first)[-1], static_shape(second)[-1]
                yield (first.name, second.name), widths


def _routers(graph: ir.Graph) -> set[ir.Node]:
    """The products from which the logits of experts are computed without another product."""
    found: set[ir.Node] = set()
    seen: set[ir.Node] = set()
    ahead = [node.inputs[1] for node in graph if node.op_type == "MoE"]
    while ahead:
        value = ahead.pop()
        node = None if value is None else value.producer()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.op_type == "FusedMatMul":
            found.add(node)
        else:
            ahead += node.inputs
    return found


def _examples(names: list[str]) -> list[str]:
    return names[:3] + names[-1:]
