"""The codes of every weight, by the method that was chosen."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.quantize.blocks import Scheme
from ortolan.export.quantize.calibrate import NOTHING_KNOWN, calibrated_weights
from ortolan.export.quantize.guide import importance, is_affordable
from ortolan.export.quantize.kept import kept, kept_weights
from ortolan.export.quantize.plan import Quantization
from ortolan.export.quantize.rounding import QuantizedWeight, round_weights
from ortolan.export.quantize.tune import tuned

Progress = Callable[[str, int, int], None]
"""Called with the step's name, what is done of it, and all of it."""


def find_codes(
    model: Exportable,
    quantization: Quantization,
    schemes: Mapping[str, Scheme],
    inputs: Inputs,
    progress: Progress,
) -> Iterator[QuantizedWeight]:
    """The codes of every weight of a plan.

    Args:
        model: where weights come from.
        quantization: how.
        schemes: of every weight.
        inputs: what to calibrate on, if the method does.
        progress: told of every weight, while calibrating.
    """
    stored = {} if quantization.keeps == "none" else kept(model.weights, schemes)
    yield from kept_weights(model.weights, stored)
    rest = {name: scheme for name, scheme in schemes.items() if name not in stored}
    if quantization.method != "gptq":
        yield from round_weights(model.weights, rest, quantization.method)
        return
    if not rest:
        return
    tunes, known = quantization.tunes, NOTHING_KNOWN
    if tunes or is_affordable(model, sum(map(len, inputs.ids)), rest):
        known = importance(model, inputs, progress=partial(progress, "guide"))
    told = partial(progress, "calibrate")
    found = calibrated_weights(model, rest, inputs, importance=known, progress=told)
    yield from tuned(model, found, inputs, progress=partial(progress, "tune")) if tunes else found
