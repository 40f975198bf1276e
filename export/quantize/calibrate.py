"""GPTQ of a whole model, one product at a time.

The inputs of a product are computed with the trained weights before it. Frantar et al. (2022,
"GPTQ", section 3) use the rounded ones, which is worse here (docs/adr/0014). Products that read the
same inputs share a Hessian.

Memory: the activations of every input, one weight, and what `gptq.factorize` needs for its columns.

Shape letters: S tokens of a text, K columns of a weight.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from operator import is_
from weakref import ref

import torch
from torch import Tensor

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs, calls
from ortolan.export.products import linear
from ortolan.export.progress import Progress, silent
from ortolan.export.quantize import gptq
from ortolan.export.quantize.blocks import dequantize
from ortolan.export.quantize.places import Place, places_of, tables_of
from ortolan.export.quantize.refine import refine
from ortolan.export.quantize.rounding import Part, QuantizedWeight, round_weight
from ortolan.export.scheme import Scheme
from ortolan.export.streamed import Product, Result, run
from ortolan.modeling.weights import Weights
from ortolan.runtime.machine.memory import return_free_memory

TIED_DAMPING = 0.5
"""Damping of a head that is also the embedding, where errors count alike in every column."""

SUM_COLUMNS = 512
"""Columns of a Hessian that are summed together, from the diagonal down: it is symmetric."""

SUM_TOKENS = 1024
"""Tokens that are added to a Hessian at once, which reads and writes it once."""

ROUND_NUMBERS = 1 << 22
"""Numbers of rows that are rounded together: 16 MiB in float32, and ten times that at work."""

Fit = Callable[[Tensor, gptq.Factor, Scheme], Part]
"""Finds the codes of rows `(n, K)` of a weight, given the factor of its inputs."""


def fit(weight: Tensor, factor: gptq.Factor, scheme: Scheme) -> Part:
    """Codes by GPTQ, refined."""
    codes = refine(weight, gptq.round_columns(weight, factor, scheme), factor)
    return Part(rows=weight, codes=codes)


def fit_with_loss(weight: Tensor, factor: gptq.Factor, scheme: Scheme) -> Part:
    """Codes by GPTQ, with their loss; 8 bits leave nothing to refine."""
    codes = gptq.round_columns(weight, factor, scheme)
    if scheme.bits == 4:
        codes = refine(weight, codes, factor)
    loss = gptq.output_loss(weight - dequantize(codes), factor)
    return Part(rows=weight, codes=codes, loss=loss)


def calibrated_weights(
    model: Exportable,
    plan: Mapping[str, Sequence[Scheme]],
    inputs: Inputs,
    fit: Fit = fit,
    *,
    done: Container[tuple[str, Scheme]] = (),
    progress: Progress = silent,
) -> Iterator[QuantizedWeight]:
    """Every weight of a plan by GPTQ, except embeddings and experts, which no input is seen of.

    A weight comes in each of its schemes, one after the other. Read its parts before the next.
    Those that are `done` are left out; the others get the codes that they would get without.
    """
    embeddings, places = tables_of(model.module), places_of(model.weights, plan)
    # Weights that are not finished, with the parts of those that join several products.
    pending: dict[str, dict[int, list[list[Part]]]] = {
        name: {}
        for name, schemes in plan.items()
        if any((name, scheme) not in done for scheme in schemes)
    }
    waiting = _Waiting([])

    def rounded(waiting: _Waiting) -> Iterator[QuantizedWeight]:
        if waiting.hessian is None:
            return
        is_tied = not embeddings.isdisjoint(place.product for place in waiting.places)
        damping = TIED_DAMPING if is_tied else gptq.DAMPING
        return_free_memory()
        factor = gptq.factorize(waiting.hessian, damping=damping)
        for place in waiting.places:
            if place.name in pending:
                yield from _round(model.weights, place, plan[place.name], factor, fit, pending)
                progress("calibrate", len(plan) - len(pending), len(plan), place.name)

    with closing(run(model.module, model.weights, calls(model, inputs))) as events:
        for event in events:
            if isinstance(event, Result) or event.name not in places:
                continue
            place = places.pop(event.name)
            if not waiting.reads(event.inputs):
                # Only now is the memory of the inputs of those products free.
                yield from rounded(waiting)
                waiting = _Waiting(event.inputs)
            waiting.places.append(place)
            if waiting.hessian is None and place.name in pending:
                waiting.hessian = _sum_of_squares(event)
            if pending.keys().isdisjoint(place.name for place in places.values()):
                break  # nothing is needed after the last product
    yield from rounded(waiting)
    for name in pending:  # embeddings, experts, and products that no input reached
        are_experts = len(model.weights.shape(name)) == 3
        for scheme in plan[name]:
            yield round_weight(model.weights, name, scheme, search=are_experts)
    progress("calibrate", len(plan), len(plan))


class _Waiting:
    """Products with the same inputs, whose weights are rounded when the inputs are free."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.hessian: Tensor | None = None
        self.places: list[Place] = []
        self._inputs = [ref(x) for x in inputs]

    def reads(self, inputs: Sequence[Tensor]) -> bool:
        """Whether the same tensors enter another product."""
        ours = [x() for x in self._inputs]
        return len(ours) == len(inputs) and all(map(is_, ours, inputs))


def _round(
    weights: Weights,
    place: Place,
    schemes: Sequence[Scheme],
    factor: gptq.Factor,
    fit: Fit,
    pending: dict[str, dict[int, list[list[Part]]]],
) -> Iterator[QuantizedWeight]:
    """The codes of the weight of a product, a few rows at a time.

    A weight that joins several products stays in `pending` until all of its rows are there.
    """
    name = place.name
    parts = [_parts(weights, place, scheme, factor, fit) for scheme in schemes]
    if place.parts > 1:
        pending[name][place.start] = [list(rows) for rows in parts]
        if len(pending[name]) < place.parts:
            return
        in_order = [of_schemes for _, of_schemes in sorted(pending[name].items())]
        parts = [chain.from_iterable(of_scheme) for of_scheme in zip(*in_order, strict=True)]
    del pending[name]
    for scheme, rows in zip(schemes, parts, strict=True):
        yield QuantizedWeight(name=name, scheme=scheme, method="gptq", parts=rows)


def _parts(
    weights: Weights, place: Place, scheme: Scheme, factor: gptq.Factor, fit: Fit
) -> Iterator[Part]:
    """Rows of a place, and their codes."""
    step = max(1, ROUND_NUMBERS // len(factor.order))
    for start in range(place.start, place.stop, step):
        rows = weights.rows(place.name, start, min(start + step, place.stop)).float()
        yield fit(rows, factor, scheme)
        return_free_memory()


def _sum_of_squares(event: Product) -> Tensor:
    """The sum of x xT over all inputs x `(K,)` of a product, `(K, K)`.

    It is symmetric, so only the part below the diagonal is computed.
    """
    columns = event.inputs[0].shape[-1]
    total_KK = torch.zeros(columns, columns)
    starts = range(0, columns, SUM_COLUMNS)
    for x_KS in _joined(x.flatten(0, -2).float() for x in event.inputs):
        for start in starts:
            part = x_KS[start : start + SUM_COLUMNS]
            total_KK[start:, start : start + SUM_COLUMNS] += linear(x_KS[start:], part)
    for start in starts:
        stop = start + SUM_COLUMNS
        total_KK[start:stop, stop:] = total_KK[stop:, start:stop].T
    return total_KK


def _joined(inputs: Iterable[Tensor]) -> Iterator[Tensor]:
    """Inputs `(S, K)` as `(K, S)`, joined to about `SUM_TOKENS` tokens."""
    batch: list[Tensor] = []
    for x_SK in inputs:
        batch.append(x_SK.T)
        if sum(x_KS.shape[1] for x_KS in batch) >= SUM_TOKENS:
            yield torch.cat(batch, dim=1)
            batch.clear()
    if batch:
        yield torch.cat(batch, dim=1)
