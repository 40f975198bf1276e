"""Every weight of some graphs into one file, each in the form that its graphs read.

Knows which weights are floats, which are codes, and who finds the codes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ortolan.export.options import Options
from ortolan.export.passes import QuantizePortable, QuantizeProducts, QuantizeWeights
from ortolan.export.quantize.blocks import Scheme
from ortolan.export.quantize.calibrate import calibrated_weights
from ortolan.export.quantize.plan import Quantization, plan
from ortolan.export.source.checkpoint import Source
from ortolan.export.source.inputs import Inputs
from ortolan.export.weights.blob import Blob, BlobWriter, initializer_bytes, write_rest
from ortolan.export.weights.codes import (
    Quantized,
    round_weights,
    write_channels,
    write_codes,
    write_portable,
)
from ortolan.runtime.bundle.kinds import MAPS_ROLE
from ortolan.runtime.bundle.manifest import QuantizedTensor

Progress = Callable[[str, int, int], None]
"""Called with the step's name, what is done of it, and all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """Graphs as they will be written, and which of the weights that they read are codes.

    Attributes:
        graphs: by role.
        schemes: of the weights in groups.
        channels: names of the weights of products of integers.
    """

    graphs: Mapping[str, ir.Model]
    schemes: Mapping[str, Scheme]
    channels: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What was written.

    Attributes:
        quantized: every weight that is stored in few bits.
    """

    blob: Blob
    quantized: tuple[QuantizedTensor, ...]


def lower(traced: Mapping[str, ir.Model], options: Options) -> Lowered:
    """Rewrite graphs for the precision that was asked for.

    Args:
        traced: graphs by role, tidied; rewritten in place.
        options: what was asked for.

    Raises:
        OptionError: an exclusion names no weight.
    """
    models = list(traced.values())
    schemes = {} if options.quantization is None else plan(models, options.quantization)
    channels: list[str] = []
    if options.prefill_precision is not None:
        channels = _quantize_products(traced, options, schemes)
    # What only products of integers read has no codes besides.
    read = {name for ir_model in models for name in ir_model.graph.initializers}
    schemes = {name: scheme for name, scheme in schemes.items() if name in read}
    rewrite = _REWRITES[options.attention](schemes)
    for ir_model in models:
        rewrite(ir_model)
    return Lowered(graphs=traced, schemes=schemes, channels=channels)


_REWRITES = {"fused": QuantizeWeights, "portable": QuantizePortable}


def store(
    lowered: Lowered,
    model: Source,
    options: Options,
    inputs: Inputs,
    folder: Path,
    report: Progress,
) -> Stored:
    """Write what graphs read.

    Args:
        lowered: the graphs.
        model: where weights come from.
        options: what was asked for.
        inputs: what to calibrate on, if the method does.
        folder: where to write.
        report: told of every chunk and, while calibrating, of every layer.

    Raises:
        ExportError: a value does not fit the precision.
    """
    models = list(lowered.graphs.values())
    total = initializer_bytes(models)
    with BlobWriter(
        folder, total=total, progress=lambda done, all_: report("weights", done, all_)
    ) as writer:
        quantized: list[QuantizedTensor] = []
        if options.quantization is not None:
            found = _find(model, options.quantization, lowered.schemes, inputs, report)
            if options.attention == "portable":
                wanted = {name for ir_model in models for name in ir_model.graph.initializers}
                quantized += write_portable(writer, found, wanted, dtype=options.dtype)
            else:
                quantized += write_codes(writer, found, dtype=options.dtype)
            quantized += write_channels(writer, model.weights, lowered.channels)
        write_rest(writer, models, model.weights, model.tables, dtype=options.dtype)
        return Stored(blob=writer.finish(), quantized=tuple(quantized))


def _quantize_products(
    traced: Mapping[str, ir.Model], options: Options, schemes: Mapping[str, Scheme]
) -> list[str]:
    """Products of integers in the graph that takes whole texts; the weights that it has."""
    role = "prefill" if options.kind == "decoder" else "encoder"
    names = [name for name in schemes if ".blocks." in f".{name}"]
    channels = [name for name in names if name in traced[role].graph.initializers]
    rewrite = QuantizeProducts(set(channels))
    rewrite(traced[role])
    if options.kind != "decoder" and MAPS_ROLE in traced:
        # What it shows is what the encoder computes.
        rewrite(traced[MAPS_ROLE])
    return channels


def _find(
    model: Source,
    options: Quantization,
    schemes: Mapping[str, Scheme],
    inputs: Inputs,
    report: Progress,
) -> Iterable[Quantized]:
    if options.method != "gptq":
        return round_weights(model.weights, schemes, options.method)
    return calibrated_weights(
        model.config,
        model.weights,
        model.tables,
        schemes,
        inputs,
        progress=lambda done, total: report("calibrate", done, total),
    )
