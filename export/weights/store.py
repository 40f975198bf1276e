"""Every weight of some graphs into one file, each in the form that its graphs read."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ortolan.export.exportable import Exportable
from ortolan.export.passes.lower import Lowered
from ortolan.export.proof.witness import Witness
from ortolan.export.quantize.rounding import QuantizedWeight
from ortolan.export.settings import Settings
from ortolan.export.weights.blob import Blob, BlobWriter, initializer_bytes, write_rest
from ortolan.export.weights.codes import write_channels, write_codes, write_portable
from ortolan.runtime.bundle.manifest import QuantizedTensor
from ortolan.runtime.verification.weight_sums import ExpectedWeights

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
    codes: Iterable[QuantizedWeight],
    folder: Path,
    progress: Progress,
    *,
    origin: str | None = None,
) -> Stored:
    """Write the weights that graphs read.

    Args:
        lowered: the graphs.
        model: where weights come from.
        settings: of the export.
        codes: every weight that is stored in groups, in any order.
        folder: where to write.
        progress: told of every chunk.
        origin: of what codes were calibrated on, if they were.

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
            if settings.options.attention == "portable":
                wanted = {name for ir_model in models for name in ir_model.graph.initializers}
                quantized += write_portable(writer, codes, wanted, dtype=dtype)
            else:
                quantized += write_codes(writer, codes, dtype=dtype)
            quantized += write_channels(writer, model.weights, lowered.channels)
        write_rest(writer, models, model.weights, model.tables, dtype=dtype)
        is_calibrated = any(tensor.method in ("gptq", "tuned") for tensor in quantized)
        return Stored(
            blob=writer.finish(),
            expected=witness.finish(),
            quantized=tuple(quantized),
            calibrated_on=origin if is_calibrated else None,
        )
