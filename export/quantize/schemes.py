"""Decides which weights become low-bit, and in which format."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import Literal, cast

import onnx_ir as ir

from ortolan.export.errors import OptionError
from ortolan.export.low_bit import Quantization
from ortolan.export.options import GROUP_SIZES, GroupSize
from ortolan.export.scheme import Scheme
from ortolan.export.values import static_shape
from ortolan.modeling.weights import Weights
from ortolan.runtime.bundle.interface import TARGET_IDS
from ortolan.runtime.bundle.source import IDS

NARROW = 2048
"""Row length from which errors of inputs even out (docs/adr/0005); shorter rows are narrow."""

EXPERT_INPUTS = (2, 4)
"""Inputs of a MoE node that are weights: gate and up together, and down."""

CELLS = frozenset({"RNN", "GRU", "LSTM"})
"""Recurrent operators, whose second and third inputs are weights."""

NORMS = ("LayerNormalization", "RMSNormalization", "SkipSimplifiedLayerNormalization")
VALUES: Mapping[str, int] = {"Attention": 2, "GroupQueryAttention": 2}
"""Norms, and the input of each attention operator that holds its values; without one, the first
input holds queries, keys and values."""


def assign_schemes(
    models: Iterable[ir.Model], options: Quantization, weights: Weights | None = None
) -> dict[str, Scheme]:
    """The scheme of every low-bit weight, by the name of its initializer.

    Weights of products and token tables become low-bit. Position tables, norms, biases and routers
    stay floats, since they are small, and so do weights of recurrent operators, which have no
    low-bit form. Both weights of the experts of a layer get the same scheme, or neither gets one.
    Codes that the checkpoint stores keep their scheme, if the options reuse them.
    """
    models = list(models)
    cells = [node for model in models for node in model.graph if node.op_type in CELLS]
    # Followed back through nodes that reorder their rows.
    of_cells = {value.name for node in cells for value in _origins(node.inputs[1:3])}
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
            f"exclude: {unmatched[0]!r} matches no weight. Some weights are "
            f"{', '.join(names[:3] + names[-1:])}."
        )
    sensitive = {name for model in models for name in _sensitive(model.graph)}
    exact = replace(options, scheme=options.sensitive or options.scheme)
    schemes = {
        name: scheme_of(
            name, shape[1], exact if name in sensitive and min(shape) < NARROW else options, weights
        )
        for name, shape in matrices.items()
        if not _is_excluded(name, options)
    }
    for both, widths in experts.items():
        if not any(_is_excluded(name, options) for name in both):
            scheme = _dividing(both[0], widths, exact if min(widths) < NARROW else options)
            # A MoE node has one scheme for both weights, and no minimums.
            stored = {_reused(weights, name, scheme, options, has_minimums=False) for name in both}
            schemes |= dict.fromkeys(both, stored.pop() if len(stored) == 1 else scheme)
    return schemes


def scheme_choices(
    models: Sequence[ir.Model], options: Quantization, weights: Weights | None = None
) -> dict[tuple[str, ...], list[dict[str, Scheme]]]:
    """The schemes to choose from, by the names of weights: the fewest bytes first, 8 bits last.

    The two weights of the experts of a layer are one choice.
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
    choices: dict[tuple[str, ...], list[dict[str, Scheme]]] = {}
    for names in groups:
        schemes = [{name: plan[name] for name in names} for plan in plans]
        choices[names] = [one for place, one in enumerate(schemes) if one not in schemes[:place]]
    return choices


def _is_excluded(name: str, options: Quantization) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in options.exclude)


def _dividing(name: str, widths: tuple[int, int], options: Quantization) -> Scheme:
    """The scheme of experts: the largest groups that divide their rows, which have no padding."""
    most = options.scheme.group
    sizes = [group for group in GROUP_SIZES if group <= most] if options.shrink_groups else [most]
    groups = [group for group in sizes if not any(width % group for width in widths)]
    if not groups:
        raise OptionError(
            f"{name}: groups of {sizes[0]} do not divide rows of {' and '.join(map(str, widths))} "
            "columns. Keep experts as floats with --exclude '*.experts.*'."
        )
    return replace(options.scheme, group=max(groups))


def scheme_of(
    name: str, columns: int, options: Quantization, weights: Weights | None = None
) -> Scheme:
    """The scheme of a weight with rows of this many columns; see `assign_schemes`."""
    scheme = options.scheme if is_block(name) else options.head
    if options.narrow_group is not None and scheme.bits == 4 and columns < NARROW:
        has_zeros = not scheme.symmetric or options.sensitive is not None
        scheme = replace(scheme, group=options.narrow_group, symmetric=not has_zeros)
    fits = options.shrink_groups or scheme.bits > options.scheme.bits
    fitting = _fewest_bytes(scheme, columns) if fits else scheme
    # Look-ups in a table have no minimums.
    return _reused(weights, name, fitting, options, has_minimums=is_block(name))


def _reused(
    weights: Weights | None,
    name: str,
    scheme: Scheme,
    options: Quantization,
    *,
    has_minimums: bool,
) -> Scheme:
    """The scheme of a weight's stored codes, unless it needs more bits or nodes than allowed."""
    stored = None if options.reuse == "none" else stored_scheme(weights, name)
    most = scheme.bits if is_block(name) else max(scheme.bits, options.reuse_head_bits)
    if stored is None or stored.bits > most:
        return scheme
    allows_minimums = options.reuse == "all" and has_minimums
    return stored if allows_minimums or not stored.minimums else scheme


def stored_scheme(weights: Weights | None, name: str) -> Scheme | None:
    """The scheme of a weight's codes in the checkpoint; None without codes that kernels support."""
    codes = None if weights is None else weights.codes(name)
    if codes is None or (form := codes.format) is None:
        return None
    bits, group = cast(Literal[4, 8], form.bits), cast(GroupSize, form.group)
    return Scheme(bits=bits, group=group, symmetric=form.symmetric, minimums=form.minimums)


def _fewest_bytes(scheme: Scheme, columns: int) -> Scheme:
    """The scheme with the group size, its own or smaller, that makes the shortest rows.

    576 columns are 5 groups of 128, the last one half padding, or 9 groups of 64.
    """
    smaller = (replace(scheme, group=group) for group in GROUP_SIZES if group <= scheme.group)
    # Codes and scales alone. Prefer larger groups for equal rows: fewer scales to multiply with.
    return min(smaller, key=lambda own: (sum(own.sizes(1, columns)[:2]), -own.group))


def is_block(name: str) -> bool:
    """Whether a weight belongs to a numbered layer, rather than a head or a table."""
    return re.search(r"\.\d+\.", f".{name}") is not None


def _matrices(graph: ir.Graph) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Weights of products, and token tables, with their shapes.

    Without routers and products of a single row, in which errors cost much and bits little.
    """
    logits = [node.inputs[1] for node in graph if node.op_type == "MoE"]
    routers = {value.producer() for value in _origins(logits, "FusedMatMul")}
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


def _sensitive(graph: ir.Graph) -> Iterator[str]:
    """Weights of layers whose rounding costs most (docs/adr/0039), found by what is around them.

    Products that become the values of attention, and those of what another product computes, with
    no norm or attention between: the second of a feed-forward network.
    """
    products = "FusedMatMul", "Shape"  # not through sizes, which products also decide
    stops = *products, *NORMS, *VALUES
    origins = _origins(graph.outputs, *stops)  # values of cross-attention, which other graphs read
    for node in graph:
        place = VALUES.get(node.op_type)
        if place is not None:
            values = node.inputs[place] if node.inputs[place] is not None else node.inputs[0]
            origins = chain(origins, _origins([values], *products))
        elif node.op_type == "FusedMatMul":
            before = _origins(node.inputs[:1], *stops)
            if any(_weight_of(origin.producer()) for origin in before):
                yield from _weight_of(node)
    for origin in origins:
        yield from _weight_of(origin.producer())


def _weight_of(node: ir.Node | None) -> list[str]:
    """The name of the weight of a layer's product; empty for anything else."""
    weight = None if node is None or node.op_type != "FusedMatMul" else node.inputs[1]
    return [weight.name] if weight is not None and weight.name and is_block(weight.name) else []


def _experts(graph: ir.Graph) -> Iterator[tuple[tuple[str, str], tuple[int, int]]]:
    """Names and row lengths of the two expert weights of every layer."""
    for node in graph:
        if node.op_type == "MoE":
            first, second = (node.inputs[place] for place in EXPERT_INPUTS)
            if first is not None and second is not None and first.name and second.name:
                widths = static_shape(first)[-1], static_shape(second)[-1]
                yield (first.name, second.name), widths


def _origins(values: Iterable[ir.Value | None], *operators: str) -> Iterator[ir.Value]:
    """What values are computed from: outputs of some operators, or of no node at all."""
    ahead, seen = list(values), set[ir.Value]()
    while ahead:
        value = ahead.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is None or node.op_type in operators:
            yield value
        else:
            ahead += node.inputs
