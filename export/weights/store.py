"""Writes every weight of a bundle, in the form that its graphs read."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ortolan.export.exportable import Exportable
from ortolan.export.passes.specialize import Specialized
from ortolan.export.progress import Progress, silent
from ortolan.export.proof.weight_sums import WeightSums
from ortolan.export.quantize.rounding import QuantizedWeight
from ortolan.export.settings import Plan
from ortolan.export.sizes import initializer_sizes
from ortolan.export.weights.blob import Blob, BlobWriter, write_rest
from ortolan.export.weights.codes import write_channels, write_codes, write_portable
from ortolan.runtime.bundle.manifest import QuantizedTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The weight files, all low-bit weights, and the origin of what some were fitted to."""

    blob: Blob
    quantized: tuple[QuantizedTensor, ...]
    calibrated_on: str | None


def store(
    folder: Path,
    specialized: Specialized,
    model: Exportable,
    plan: Plan,
    codes: Iterable[QuantizedWeight],
    *,
    sums: WeightSums,
    origin: str | None = None,
    progress: Progress = silent,
) -> Stored:
    """Write the weights that graphs read."""
    models, dtype = list(specialized.graphs.values()), plan.dtype
    quantized: list[QuantizedTensor] = []
    sizes = initializer_sizes(models)
    with BlobWriter(folder, sizes=sizes, sums=sums, progress=progress) as writer:
        if plan.quantization is not None:
            if plan.has_standard_products:
                names = {name for graph in models for name in graph.graph.initializers}
                quantized += write_portable(writer, codes, names, dtype=dtype)
            else:
                quantized += write_codes(writer, codes, dtype=dtype)
            quantized += write_channels(writer, model.weights, specialized.channels)
        write_rest(writer, models, model.weights, model.tables, dtype=dtype)
        is_calibrated = any(tensor.method == "gptq" for tensor in quantized)
        return Stored(
            blob=writer.finish(),
            quantized=tuple(quantized),
            calibrated_on=origin if is_calibrated else None,
        )
