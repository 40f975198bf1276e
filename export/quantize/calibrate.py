"""Codes that keep what a model computes on its inputs, found a product at a time.

What enters a product is computed by the products before it as they were trained: Frantar et al.
(2022, "GPTQ", section 3) compute it with what is stored, which measures worse here
(docs/adr/0014). Products that read the same inputs share the sum over them.

Memory: what each input computes at the time, one weight, and what `gptq.factorize` needs for its
columns.

Shape letters: S tokens of a text, K columns of a weight.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ortolan.export.derived import leaves_of
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs, calls
from ortolan.export.precision import Method
from ortolan.export.quantize import gptq
from ortolan.export.quantize.blocks import Scheme
from ortolan.export.quantize.refine import refine
from ortolan.export.quantize.rounding import Part, QuantizedWeight, round_rows, row_chunks
from ortolan.export.streamed import Product, Result, run
from ortolan.modeling.weights import Weights
from ortolan.runtime.machine.memory import return_free_memory

TIED_DAMPING = 0.5
"""Of a head that is the embedding as well: there, errors count the same in every column."""


def calibrated_weights(
    model: Exportable,
    plan: Mapping[str, Scheme],
    inputs: Inputs,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[QuantizedWeight]:
    """Every weight of a plan, by GPTQ; an embedding that is no head is rounded, experts by `hqq`.

    What comes after experts computes with what they were.

    Args:
        model: the model; its weights are read as they are used.
        plan: which weights, and how.
        inputs: what to calibrate on.
        progress: told after every weight.

    Yields:
        Each weight once; read its parts before the next weight.
    """
    schemes = {name: (scheme,) for name, scheme in plan.items()}
    return in_schemes(model, schemes, inputs, _fit, progress=progress)


Fit = Callable[[Tensor, gptq.Factor, Scheme], Part]
"""Some rows of a weight `(n, K)`, by what enters it."""


def in_schemes(
    model: Exportable,
    plan: Mapping[str, Sequence[Scheme]],
    inputs: Inputs,
    fit: Fit,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[QuantizedWeight]:
    """The same in several schemes: each weight in all of its own, one after the other.

    Args:
        model: as above.
        plan: which weights, and in which schemes.
        inputs: as above.
        fit: finds codes.
        progress: as above.
    """
    looked_up, places = _looked_up(model.module), places_of(model.weights, plan)
    found: dict[str, dict[int, list[Part]]] = {name: {} for name in plan}
    factor: gptq.Factor | None = None
    factored: Sequence[Tensor] = ()
    for event in run(model.module, model.weights, calls(model, inputs)):
        place = None if isinstance(event, Result) else places.pop(event.name, None)
        if isinstance(event, Result) or place is None:
            continue
        if factor is None or not _is_same(event.inputs, factored):
            factor, factored = None, event.inputs
            return_free_memory()
            damping = TIED_DAMPING if event.name in looked_up else gptq.DAMPING
            factor = gptq.factorize(_sum_of_squares(event.inputs), damping=damping)
        yield from _fitted(model, event, place, plan[place.name], factor, fit, found)
        if progress is not None:
            progress(len(plan) - len(found), len(plan))
    for name in found:
        method: Method = "rtn" if len(model.weights.shape(name)) == 2 else "hqq"
        for scheme in plan[name]:
            parts = round_rows(model.weights, name, scheme, method)
            yield QuantizedWeight(name=name, scheme=scheme, method=method, parts=parts)
    if progress is not None:
        progress(len(plan), len(plan))


class Place(NamedTuple):
    """Where the weight of a product is among those of a plan.

    Attributes:
        name: of the planned weight.
        start: its first row there.
        stop: the row after its last.
        parts: weights that make up the planned one.
        transposed: its columns are the rows there.
    """

    name: str
    start: int
    stop: int
    parts: int
    transposed: bool


def places_of(weights: Weights, plan: Iterable[str]) -> dict[str, Place]:
    """Where each weight of the module is stored, by its name."""
    places = {}
    for name in plan:
        leaves, start = leaves_of(weights, name), 0
        for leaf in leaves:
            stop = start + leaf.rows
            places[leaf.name] = Place(name, start, stop, len(leaves), leaf.transposed)
            start = stop
    return places


def _fitted(
    model: Exportable,
    product: Product,
    place: Place,
    schemes: Sequence[Scheme],
    factor: gptq.Factor,
    fit: Fit,
    found: dict[str, dict[int, list[Part]]],
) -> Iterator[QuantizedWeight]:
    """The codes of the weight of a product.

    A weight that is stored as rows of another waits in `found` until all of that is there. One
    with a row for each token is rounded some rows at a time: it is large, and nothing comes after.
    """
    name, weights = place.name, model.weights
    if place.parts == 1 and place.stop == model.vocab_size:
        del found[name]
        for scheme in schemes:
            parts = (fit(rows, factor, scheme) for rows in row_chunks(weights, name))
            yield QuantizedWeight(name=name, scheme=scheme, method="gptq", parts=parts)
        return
    rows = weights.rows(name, place.start, place.stop).float()
    found[name][place.start] = [fit(rows, factor, scheme) for scheme in schemes]
    if len(found[name]) == place.parts:
        by_row = found.pop(name)
        in_order = [by_row[start] for start in sorted(by_row)]
        for number, scheme in enumerate(schemes):
            whole = iter([each[number] for each in in_order])
            yield QuantizedWeight(name=name, scheme=scheme, method="gptq", parts=whole)


def _fit(weight: Tensor, factor: gptq.Factor, scheme: Scheme) -> Part:
    codes = refine(weight, gptq.round_columns(weight, factor, scheme), factor)
    return Part(rows=weight, codes=codes)


def _sum_of_squares(inputs: Sequence[Tensor]) -> Tensor:
    """The sum of x xT over all x `(K,)` that enter a product, `(K, K)`."""
    columns = inputs[0].shape[-1]
    total = torch.zeros(columns, columns)
    for each in inputs:
        x_SK = each.flatten(0, -2).float()
        total.addmm_(x_SK.T, x_SK)
    return total


def _is_same(inputs: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether the very same tensors enter two products."""
    return len(inputs) == len(others) and all(a is b for a, b in zip(inputs, others, strict=True))


def _looked_up(module: nn.Module) -> set[str]:
    """Names of weights that are tables of tokens."""
    tables = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)}
    return {name for name, parameter in module.named_parameters() if id(parameter) in tables}
