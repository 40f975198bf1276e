"""Codes that keep what a model computes on its inputs, found a product at a time.

What enters a product is computed by the products before it as they were trained: Frantar et al.
(2022, "GPTQ", section 3) compute it with what is stored, which measures worse here
(docs/adr/0014). Products that read the same inputs share the sum over them.

Memory: what each input computes at the time, one weight, and what `gptq.factorize` needs for its
columns.

Shape letters: S tokens of a text, K columns of a weight.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from operator import is_
from types import MappingProxyType
from weakref import ref

import torch
from torch import Tensor

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs, calls
from ortolan.export.options import Method
from ortolan.export.products import linear
from ortolan.export.progress import Progress, silent
from ortolan.export.quantize import gptq
from ortolan.export.quantize.guide import Importance
from ortolan.export.quantize.places import Place, places_of, tables_of
from ortolan.export.quantize.refine import refine
from ortolan.export.quantize.rounding import Part, QuantizedWeight, round_rows
from ortolan.export.scheme import Scheme
from ortolan.export.streamed import Product, Result, run
from ortolan.modeling.weights import Weights
from ortolan.runtime.machine.memory import return_free_memory

NOTHING_KNOWN: Importance = MappingProxyType({})

TIED_DAMPING = 0.5
"""Of a head that is the embedding as well: there, errors count the same in every column."""

SUM_COLUMNS = 512
"""Columns of a Hessian that are summed together, with those after them: it is symmetric."""

SUM_TOKENS = 1024
"""Tokens over which a Hessian is summed together: it is read and written once for all of them."""

ROUND_NUMBERS = 1 << 22
"""Of the rows of a weight that are rounded together, 16 MiB in float32; it takes ten times that."""


def calibrated_weights(
    model: Exportable,
    plan: Mapping[str, Scheme],
    inputs: Inputs,
    *,
    importance: Importance = NOTHING_KNOWN,
    progress: Progress = silent,
) -> Iterator[QuantizedWeight]:
    """Every weight of a plan, by GPTQ; an embedding that is no head is rounded, experts by `hqq`.

    What comes after experts computes with what they were.

    Args:
        model: the model; its weights are read as they are used.
        plan: which weights, and how.
        inputs: what to calibrate on.
        importance: what each token counts; all count alike in products that it does not have.
        progress: told after every weight.

    Yields:
        Each weight once; read its parts before the next weight.
    """
    schemes = {name: (scheme,) for name, scheme in plan.items()}
    return in_schemes(model, schemes, inputs, fit, importance=importance, progress=progress)


Fit = Callable[[Tensor, gptq.Factor, Scheme], Part]
"""Finds the codes of some rows of a weight `(n, K)`, by what enters it."""


def in_schemes(
    model: Exportable,
    plan: Mapping[str, Sequence[Scheme]],
    inputs: Inputs,
    fit: Fit,
    *,
    importance: Importance = NOTHING_KNOWN,
    progress: Progress = silent,
) -> Iterator[QuantizedWeight]:
    """The same in several schemes: each weight in all of its own, one after the other.

    Args:
        model: as above.
        plan: which weights, and in which schemes.
        inputs: as above.
        fit: finds codes.
        importance: as above.
        progress: as above.
    """
    looked_up, places = tables_of(model.module), places_of(model.weights, plan)
    found: dict[str, dict[int, list[list[Part]]]] = {name: {} for name in plan}
    waiting: _Waiting | None = None

    def rounded(waiting: _Waiting) -> Iterator[QuantizedWeight]:
        is_tied = not looked_up.isdisjoint(each.product for each in waiting.places)
        damping = TIED_DAMPING if is_tied else gptq.DAMPING
        return_free_memory()
        factor = gptq.factorize(waiting.hessian, damping=damping)
        for place in waiting.places:
            yield from _round(model.weights, place, plan[place.name], factor, fit, found)
            progress("calibrate", len(plan) - len(found), len(plan))

    with closing(run(model.module, model.weights, calls(model, inputs))) as events:
        for event in events:
            place = None if isinstance(event, Result) else places.pop(event.name, None)
            if isinstance(event, Result) or place is None:
                continue
            if waiting is not None and waiting.reads(event.inputs):
                waiting.places.append(place)
            else:
                # Only now: what entered those products has been freed.
                if waiting is not None:
                    yield from rounded(waiting)
                    waiting = None
                waiting = _Waiting(_sum_of_squares(event, importance), event.inputs, [place])
            if not places:
                break  # what comes after the last product is of no use
    if waiting is not None:
        yield from rounded(waiting)
    for name in found:
        method: Method = "rtn" if len(model.weights.shape(name)) == 2 else "hqq"
        for scheme in plan[name]:
            parts = round_rows(model.weights, name, scheme, method)
            yield QuantizedWeight(name=name, scheme=scheme, method=method, parts=parts)
    progress("calibrate", len(plan), len(plan))


class _Waiting:
    """Products of the same inputs, whose weights are rounded when the inputs are gone.

    Attributes:
        hessian: of the inputs.
        places: of their weights.
    """

    def __init__(self, hessian: Tensor, inputs: Sequence[Tensor], places: list[Place]) -> None:
        self.hessian, self.places = hessian, places
        self._inputs = [ref(each) for each in inputs]

    def reads(self, inputs: Sequence[Tensor]) -> bool:
        """Whether the very same tensors enter another product."""
        known = [each() for each in self._inputs]
        return len(known) == len(inputs) and all(map(is_, known, inputs))


def _round(
    weights: Weights,
    place: Place,
    schemes: Sequence[Scheme],
    factor: gptq.Factor,
    fit: Fit,
    found: dict[str, dict[int, list[list[Part]]]],
) -> Iterator[QuantizedWeight]:
    """The codes of the weight of a product, some rows at a time.

    A weight that is stored as rows of another waits in `found` until all of that is there.
    """
    name = place.name
    parts = [_parts(weights, place, scheme, factor, fit) for scheme in schemes]
    if place.parts == 1:
        del found[name]
        for scheme, each in zip(schemes, parts, strict=True):
            yield QuantizedWeight(name=name, scheme=scheme, method="gptq", parts=each)
        return
    found[name][place.start] = [list(each) for each in parts]
    if len(found[name]) == place.parts:
        by_row = found.pop(name)
        in_order = [by_row[start] for start in sorted(by_row)]
        for scheme, joined in zip(schemes, zip(*in_order, strict=True), strict=True):
            whole = chain.from_iterable(joined)
            yield QuantizedWeight(name=name, scheme=scheme, method="gptq", parts=whole)


def _parts(
    weights: Weights, place: Place, scheme: Scheme, factor: gptq.Factor, fit: Fit
) -> Iterator[Part]:
    """The rows of a place and their codes."""
    step = max(1, ROUND_NUMBERS // len(factor.order))
    for start in range(place.start, place.stop, step):
        rows = weights.rows(place.name, start, min(start + step, place.stop)).float()
        yield fit(rows, factor, scheme)
        return_free_memory()


def fit(weight: Tensor, factor: gptq.Factor, scheme: Scheme) -> Part:
    """The codes of some rows, by GPTQ, and refined."""
    codes = refine(weight, gptq.round_columns(weight, factor, scheme), factor)
    return Part(rows=weight, codes=codes)


def _sum_of_squares(event: Product, importance: Importance) -> Tensor:
    """The sum of x xT over all x `(K,)` that enter a product, each as it counts, `(K, K)`.

    It is symmetric: of each column, only what is below the diagonal is computed.
    """
    columns = event.inputs[0].shape[-1]
    total_KK = torch.zeros(columns, columns)
    starts = range(0, columns, SUM_COLUMNS)
    for x_KS in _together(_weighted(event, importance)):
        for start in starts:
            part = x_KS[start : start + SUM_COLUMNS]
            total_KK[start:, start : start + SUM_COLUMNS] += linear(x_KS[start:], part)
    for start in starts:
        stop = start + SUM_COLUMNS
        total_KK[start:stop, stop:] = total_KK[stop:, start:stop].T
    return total_KK


def _weighted(event: Product, importance: Importance) -> Iterator[Tensor]:
    """What enters a product, `(S, K)` each: every token times the root of what it counts."""
    flat = (x.flatten(0, -2).float() for x in event.inputs)
    known = importance.get(event.name)
    if known is None:
        yield from flat
        return
    counts = [known[index] for index in event.indices]
    mean = torch.cat(counts).mean()
    for x_SK, counts_S in zip(flat, counts, strict=True):
        yield x_SK * (counts_S / mean).sqrt().unsqueeze(-1) if mean > 0 else x_SK


def _together(inputs: Iterable[Tensor]) -> Iterator[Tensor]:
    """Inputs `(S, K)` as `(K, S)`, several at once."""
    together: list[Tensor] = []
    for x_SK in inputs:
        together.append(x_SK.T)
        if sum(x_KS.shape[1] for x_KS in together) >= SUM_TOKENS:
            yield torch.cat(together, dim=1)
            together.clear()
    if together:
        yield torch.cat(together, dim=1)
