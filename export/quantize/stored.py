"""Codes that a checkpoint stores, as they are: nothing is rounded a second time."""

import math
from collections.abc import Iterable, Iterator, Mapping

from ortolan.export.quantize.blocks import Codes
from ortolan.export.quantize.rounding import Part, QuantizedWeight
from ortolan.export.quantize.schemes import stored_scheme
from ortolan.export.scheme import Scheme
from ortolan.modeling.weights import READ_ELEMENTS, Coded, Weights


def stored_schemes(weights: Weights, plan: Mapping[str, Scheme]) -> dict[str, Scheme]:
    """The part of a plan that is what a checkpoint stores."""
    return {name: scheme for name, scheme in plan.items() if stored_scheme(weights, name) == scheme}


def stored_weights(weights: Weights, plan: Mapping[str, Scheme]) -> Iterable[QuantizedWeight]:
    """Every weight of a plan that is what a checkpoint stores; see `stored_schemes`."""
    for name, scheme in plan.items():
        parts = _parts(weights, name, scheme)
        yield QuantizedWeight(name=name, scheme=scheme, method="kept", parts=parts)


def _parts(weights: Weights, name: str, scheme: Scheme) -> Iterator[Part]:
    """One weight, a few rows at a time, or an expert at a time."""
    if not isinstance(weights, Coded):
        raise TypeError(f"{name}: its checkpoint stores no codes")
    count, *width = weights.shape(name)
    step = max(1, READ_ELEMENTS // math.prod(width))
    for start in range(0, count, step):
        stop = min(start + step, count)
        found = weights.codes(name, start, stop)
        codes = Codes(
            values=found.values.contiguous(),
            scales=found.scales.contiguous(),
            zeros=None if scheme.symmetric else found.zeros.contiguous(),
            scheme=scheme,
            minimums=found.minimums.contiguous() if scheme.minimums else None,
        )
        yield Part(rows=weights.rows(name, start, stop).float().flatten(0, -2), codes=codes)
