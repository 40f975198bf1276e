"""Codes that keep what a model computes on its inputs, found a product at a time.

What enters a product is computed by the products before it as they are stored, so that each makes
up for the errors of those before it (Frantar et al. 2022, "GPTQ", section 3). Products that read
the same inputs share the sum over them.

Memory: what each input computes at the time, one weight, and what `gptq.factorize` needs for its
columns.

Shape letters: S tokens of a text, K columns of a weight.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs, calls
from ortolan.export.quantize import gptq
from ortolan.export.quantize.blocks import Codes, Scheme, dequantize
from ortolan.export.quantize.refine import refine
from ortolan.export.quantize.rounding import Part, QuantizedWeight, round_rows, row_chunks
from ortolan.export.streamed import Product, Result, run
from ortolan.modeling.weights import Weights, read_weight
from ortolan.runtime.machine.memory import return_free_memory

TIED_DAMPING = 0.5
"""Of a head that is the embedding as well: there, errors count the same in every column."""

WHOLE_BYTES = 512 << 20
"""Of a weight in float32 whose codes go on at once; a larger one, which only a head has, is
rounded some rows at a time, and what comes after it computes with what it was."""


def calibrated_weights(
    model: Exportable,
    plan: Mapping[str, Scheme],
    inputs: Inputs,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[QuantizedWeight]:
    """Every weight of a plan, by GPTQ; an embedding that is no head is rounded.

    Args:
        model: the model; its weights are read as they are used.
        plan: which weights, and how.
        inputs: what to calibrate on.
        progress: told after every weight.

    Yields:
        Each weight once; read its parts before the next weight.
    """
    looked_up = _looked_up(model.module)
    found: set[str] = set()
    factor: gptq.Factor | None = None
    factored: Sequence[Tensor] = ()
    for event in run(model.module, model.weights, calls(model, inputs)):
        if isinstance(event, Result) or event.name not in plan or event.name in found:
            continue
        if factor is None or not _is_same(event.inputs, factored):
            factor, factored = None, event.inputs
            return_free_memory()
            damping = TIED_DAMPING if event.name in looked_up else gptq.DAMPING
            factor = gptq.factorize(_sum_of_squares(event.inputs), damping=damping)
        yield from _round(model.weights, event, plan[event.name], factor)
        found.add(event.name)
        if progress is not None:
            progress(len(found), len(plan))
    for name in (name for name in plan if name not in found):
        parts = round_rows(model.weights, name, plan[name], "rtn")
        yield QuantizedWeight(name=name, scheme=plan[name], method="rtn", parts=parts)
    if progress is not None:
        progress(len(plan), len(plan))


def _round(
    weights: Weights, product: Product, scheme: Scheme, factor: gptq.Factor
) -> Iterator[QuantizedWeight]:
    """The codes of the weight of a product, which computes with them from here on."""
    name = product.name
    if 4 * math.prod(weights.shape(name)) > WHOLE_BYTES:
        parts = (
            Part(rows=rows, codes=_codes(rows, factor, scheme))
            for rows in row_chunks(weights, name)
        )
        yield QuantizedWeight(name=name, scheme=scheme, method="gptq", parts=parts)
        return
    rows = read_weight(weights, name)
    codes = _codes(rows, factor, scheme)
    yield QuantizedWeight(
        name=name, scheme=scheme, method="gptq", parts=iter([Part(rows=rows, codes=codes)])
    )
    product.weight = dequantize(codes)


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
