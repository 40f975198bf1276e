"""Codes that keep what a model computes on its inputs, found a product at a time.

What enters a product is computed by the products before it as they were trained: Frantar et al.
(2022, "GPTQ", section 3) compute it with what is stored, which measures worse here
(docs/adr/0014). Products that read the same inputs share the sum over them.

Memory: what each input computes at the time, one weight, and what `gptq.factorize` needs for its
columns.

Shape letters: S tokens of a text, K columns of a weight.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs, calls
from ortolan.export.precision import Method
from ortolan.export.quantize import gptq
from ortolan.export.quantize.blocks import Codes, Scheme
from ortolan.export.quantize.places import Place, places_of
from ortolan.export.quantize.refine import refine
from ortolan.export.quantize.rounding import Part, QuantizedWeight, round_rows, row_chunks
from ortolan.export.streamed import Product, Result, run
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
    looked_up, places = _looked_up(model.module), places_of(model.weights, plan)
    found: dict[str, dict[int, Part]] = {name: {} for name in plan}
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
        yield from _round(model, event, place, plan[place.name], factor, found)
        if progress is not None:
            progress(len(plan) - len(found), len(plan))
    for name in found:
        method: Method = "rtn" if len(model.weights.shape(name)) == 2 else "hqq"
        parts = round_rows(model.weights, name, plan[name], method)
        yield QuantizedWeight(name=name, scheme=plan[name], method=method, parts=parts)
    if progress is not None:
        progress(len(plan), len(plan))


def _round(
    model: Exportable,
    product: Product,
    place: Place,
    scheme: Scheme,
    factor: gptq.Factor,
    found: dict[str, dict[int, Part]],
) -> Iterator[QuantizedWeight]:
    """The codes of the weight of a product.

    A weight that is stored as rows of another waits in `found` until all of that is there. One
    with a row for each token is rounded some rows at a time: it is large, and nothing comes after.
    """
    name, weights = place.name, model.weights
    if place.parts == 1 and place.stop == model.vocab_size:
        del found[name]
        parts = (
            Part(rows=rows, codes=_codes(rows, factor, scheme))
            for rows in row_chunks(weights, name)
        )
        yield QuantizedWeight(name=name, scheme=scheme, method="gptq", parts=parts)
        return
    rows = weights.rows(name, place.start, place.stop).float()
    codes = _codes(rows, factor, scheme)
    found[name][place.start] = Part(rows=rows, codes=codes)
    if len(found[name]) == place.parts:
        by_row = found.pop(name)
        whole = iter([by_row[start] for start in sorted(by_row)])
        yield QuantizedWeight(name=name, scheme=scheme, method="gptq", parts=whole)


def _codes(weight: Tensor, factor: gptq.Factor, scheme: Scheme) -> Codes:
    return refine(weight, gptq.round_columns(weight, factor, scheme), factor)


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
