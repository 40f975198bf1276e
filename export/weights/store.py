"""Every weight of some graphs into one file, each in the form that its graphs read."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.passes.lower import Lowered
from ortolan.export.proof.witness import Witness
from ortolan.export.quantize.blocks import Scheme
from ortolan.export.quantize.calibrate import calibrated_weights
from ortolan.export.quantize.kept import kept, kept_weights
from ortolan.export.quantize.plan import Quantization
from ortolan.export.quantize.rounding import QuantizedWeight, round_weights
from ortolan.export.settings import Settings
from ortolan.export.weights.blob import Blob, BlobWriter, initializer_bytes, write_rest
from ortolan.export.weights.codes import write_channels, write_codes, write_portable
from ortolan.runtime.bundle.manifest import QuantizedTensor
from ortolan.runtime.certificate.sums import ExpectedWeights

Progress = Callable[[str, int, int], None]
"""Called with the step's name, what is done of it, and all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The file of weights.

    Attributes:
        expected: what the weights have to compute.
        quantized: every weight that is stored in few bits.
        calibrated_on: what some of them were fitted to, in words; None where none was.
    """

    blob: Blob
    expected: ExpectedWeights
    quantized: tuple[QuantizedTensor, ...]
    calibrated_on: str | None


def store(
    lowered: Lowered,
    model: Exportable,
    settings: Settings,
    inputs: Inputs,
    folder: Path,
    progress: Progress,
) -> Stored:
    """Write the weights that graphs read.

    Args:
        lowered: the graphs.
        model: where weights come from.
        settings: of the export.
        inputs: what to calibrate on, if the method does.
        folder: where to write.
        progress: told of every chunk and, while calibrating, of every layer.

    Raises:
        ExportError: a value does not fit the precision.
    """
    models, dtype = list(lowered.graphs.values()), settings.dtype
    quantized: list[QuantizedTensor] = []
    witness = Witness(models)
    with BlobWriter(
        folder,
        total=initializer_bytes(models),
        witness=witness,
        progress=partial(progress, "weights"),
    ) as writer:
        if settings.quantization is not None:
            found = _find(model, settings.quantization, lowered.schemes, inputs, progress)
            if settings.options.attention == "portable":
                wanted = {name for ir_model in models for name in ir_model.graph.initializers}
                quantized += write_portable(writer, found, wanted, dtype=dtype)
            else:
                quantized += write_codes(writer, found, dtype=dtype)
            quantized += write_channels(writer, model.weights, lowered.channels)
        write_rest(writer, models, model.weights, model.tables, dtype=dtype)
        is_calibrated = any(tensor.method == "gptq" for tensor in quantized)
        return Stored(
            blob=writer.finish(),
            expected=witness.finish(),
            quantized=tuple(quantized),
            calibrated_on=inputs.origin if is_calibrated else None,
        )


def _find(
    model: Exportable,
    quantization: Quantization,
    schemes: Mapping[str, Scheme],
    inputs: Inputs,
    progress: Progress,
) -> Iterable[QuantizedWeight]:
    """The codes of every weight of a plan."""
    stored = {} if quantization.keeps == "none" else kept(model.weights, schemes)
    yield from kept_weights(model.weights, stored)
    rest = {name: scheme for name, scheme in schemes.items() if name not in stored}
    if quantization.method != "gptq":
        yield from round_weights(model.weights, rest, quantization.method)
    elif rest:
        yield from calibrated_weights(model, rest, inputs, progress=partial(progress, "calibrate"))
