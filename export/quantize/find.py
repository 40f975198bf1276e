"""Find the codes of every low-bit weight, by the method of the plan."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from ortolan import files
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.low_bit import Quantization
from ortolan.export.progress import Progress
from ortolan.export.quantize.calibrate import calibrated_weights
from ortolan.export.quantize.candidates import Candidates
from ortolan.export.quantize.rounding import QuantizedWeight, round_weight
from ortolan.export.quantize.stored import stored_schemes, stored_weights
from ortolan.export.quantize.tune import training_steps, tune
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
    folder: Path,
    progress: Progress,
) -> Iterator[QuantizedWeight]:
    """The codes of every weight that has a scheme; temporary files are in a folder of `folder`."""
    stored = stored_schemes(model.weights, schemes, quantization)
    rest = {name: scheme for name, scheme in schemes.items() if name not in stored}
    kept = stored_weights(model.weights, stored)
    if quantization.method != "gptq":
        yield from kept
        for name, scheme in rest.items():
            yield round_weight(model.weights, name, scheme)
        return
    found = chain(kept, calibrated_weights(model, rest, inputs, progress=progress))
    steps = training_steps(model, inputs, rest) if quantization.trains_scales else 0
    if not steps:
        yield from found
        return
    with files.temporary_folder(folder / "codes") as temporary:
        candidates = Candidates(temporary, model.weights)
        for weight in found:
            candidates.add(weight)
        matrices = [name for name in rest if len(model.weights.shape(name)) == 2]
        tune(model, candidates, schemes, matrices, inputs, temporary, steps, progress)
        for name, scheme in schemes.items():
            yield candidates.weight(name, scheme)
