"""Low-bit weights of the checkpoint, copied without rounding them again."""

import math
from collections.abc import Iterable, Iterator, Mapping

from ortolan.export.exportable import Exportable
from ortolan.export.low_bit import Quantization
from ortolan.export.options import PrecisionName
from ortolan.export.quantize.blocks import Codes
from ortolan.export.quantize.rounding import Part, QuantizedWeight
from ortolan.export.quantize.schemes import stored_scheme
from ortolan.export.scheme import Scheme
from ortolan.modeling.lazy_tensor import READ_ELEMENTS
from ortolan.modeling.weights import Weights


def default_precision(model: Exportable) -> PrecisionName:
    """The precision that an export uses unless one is chosen.

    `int8` for a source with codes that kernels support: they are kept, even those of 4 bits, and
    its other matrices are rounded to 8 bits. `fp32` for any other: nothing is rounded twice.
    """
    names = (name for name, weight in model.module.named_parameters() if weight.ndim > 1)
    keeps = model.origin.is_quantized and any(stored_scheme(model.weights, name) for name in names)
    return "int8" if keeps else "fp32"


def by_origin(
    weights: Weights, plan: Mapping[str, Scheme], quantization: Quantization
) -> tuple[dict[str, Scheme], dict[str, Scheme]]:
    """Weights that the checkpoint stores in these schemes, if they are reused; and the rest."""
    kept, rest = dict[str, Scheme](), dict[str, Scheme]()
    for name, scheme in plan.items():
        is_kept = quantization.reuse != "none" and stored_scheme(weights, name) == scheme
        (kept if is_kept else rest)[name] = scheme
    return kept, rest


def stored_weights(weights: Weights, plan: Mapping[str, Scheme]) -> Iterable[QuantizedWeight]:
    """Copies of weights that the checkpoint stores in these schemes."""
    for name, scheme in plan.items():
        parts = _parts(weights, name, scheme)
        yield QuantizedWeight(name=name, scheme=scheme, method="kept", parts=parts)


def _parts(weights: Weights, name: str, scheme: Scheme) -> Iterator[Part]:
    """A weight, a few rows or one expert at a time."""
    kept = weights.codes(name)
    if kept is None:
        raise TypeError(f"{name}: the checkpoint stores no codes")
    count, *width = weights.shape(name)
    step = max(1, READ_ELEMENTS // math.prod(width))
    for start in range(0, count, step):
        stop = min(start + step, count)
        stored = kept.rows(start, stop)
        codes = Codes(
            values=stored.values.contiguous(),
            scales=stored.scales.contiguous(),
            zeros=None if scheme.symmetric else stored.zeros.contiguous(),
            scheme=scheme,
            minimums=stored.minimums.contiguous() if scheme.minimums else None,
        )
        yield Part(rows=weights.rows(name, start, stop).float().flatten(0, -2), codes=codes)
