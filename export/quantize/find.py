"""Find the codes of every low-bit weight, by the method of the plan."""

from collections.abc import Iterator, Mapping

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.low_bit import Quantization
from ortolan.export.progress import Progress
from ortolan.export.quantize.calibrate import ALL_EQUAL, calibrated_weights
from ortolan.export.quantize.guide import importance, is_affordable
from ortolan.export.quantize.rounding import QuantizedWeight, round_weight
from ortolan.export.quantize.stored import stored_schemes, stored_weights
from ortolan.export.scheme import Scheme
from ortolan.modeling.weights import Weights


def needs_inputs(
    weights: Weights, quantization: Quantization, schemes: Mapping[str, Scheme]
) -> bool:
    """Whether any weight is fitted to inputs; stored codes and experts are not."""
    rest = schemes.keys() - stored_schemes(weights, schemes, quantization).keys()
    return any(len(weights.shape(name)) == 2 for name in rest)


def find_codes(
    model: Exportable,
    quantization: Quantization,
    schemes: Mapping[str, Scheme],
    inputs: Inputs,
    progress: Progress,
) -> Iterator[QuantizedWeight]:
    """The codes of every weight that has a scheme."""
    stored = stored_schemes(model.weights, schemes, quantization)
    yield from stored_weights(model.weights, stored)
    rest = {name: scheme for name, scheme in schemes.items() if name not in stored}
    if quantization.method != "gptq":
        for name, scheme in rest.items():
            yield round_weight(model.weights, name, scheme)
    elif rest:
        weighting = ALL_EQUAL
        if quantization.is_guided and is_affordable(model, sum(map(len, inputs.ids)), rest):
            weighting = importance(model, inputs, progress)
        yield from calibrated_weights(
            model,
            rest,
            inputs,
            importance=weighting,
            progress=progress,
        )
