"""Find the codes of every low-bit weight, by the method of the plan."""

from collections.abc import Iterator, Mapping
from itertools import starmap

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import Data
from ortolan.export.low_bit import Quantization
from ortolan.export.progress import Progress
from ortolan.export.quantize.calibrate import calibrated_weights
from ortolan.export.quantize.candidates import Candidates
from ortolan.export.quantize.rounding import QuantizedWeight, round_weight
from ortolan.export.quantize.stored import by_origin, stored_weights
from ortolan.export.quantize.tune import train_scales
from ortolan.export.scheme import Scheme
from ortolan.modeling.weights import Weights


def needs_inputs(
    weights: Weights, quantization: Quantization, schemes: Mapping[str, Scheme]
) -> bool:
    """Whether any weight is fitted to inputs; stored codes and experts are not."""
    _, rest = by_origin(weights, schemes, quantization)
    return any(len(weights.shape(name)) == 2 for name in rest)


def find_codes(
    model: Exportable,
    quantization: Quantization,
    schemes: Mapping[str, Scheme],
    data: Data,
    progress: Progress,
) -> Iterator[QuantizedWeight]:
    """The codes of every weight that has a scheme.

    Calibrated ones are written to the folder `work`, and found there again (`export.unfinished`).
    """
    kept, rest = by_origin(model.weights, schemes, quantization)
    yield from stored_weights(model.weights, kept)
    if quantization.method != "gptq":
        for name, scheme in rest.items():
            yield round_weight(model.weights, name, scheme)
        return
    inputs, work = data.inputs, data.work
    if work is None:
        raise ValueError("expected a folder for calibrated codes")
    done = Candidates(work, model.weights)
    plan = {name: (scheme,) for name, scheme in rest.items()}
    for weight in calibrated_weights(model, plan, inputs, done=done, progress=progress):
        done.add(weight)
    if quantization.trains_scales:
        train_scales(model, done, rest, inputs, work, progress)
    yield from starmap(done.weight, rest.items())
