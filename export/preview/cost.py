"""Estimates what an export costs, and how its bundle will run."""

from collections.abc import Mapping

import msgspec
from torch import nn

from ortolan.export.duration import core_flops, seconds_of
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import own_calibration
from ortolan.export.options import Method, PrecisionName
from ortolan.export.parameters import count, is_matrix, weights_of
from ortolan.export.preview.run import Run, predict_run
from ortolan.export.quantize.schemes import scheme_of
from ortolan.export.settings import Quantization, resolve
from ortolan.export.sizes import pages

PROGRAM_BYTES = 550 << 20
"""Bytes of memory of an export without the model: PyTorch, ONNX, a trace."""

LAYERS_AT_ONCE: Mapping[Method | None, float] = {None: 1.5, "rtn": 1.5, "hqq": 1.5, "gptq": 4.0}
"""Float32 copies of the largest layer that are in memory at once, per method."""

FLOAT_BYTES = 4
"""Bytes of a weight that is not rounded, on the CPU."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Estimated cost of an export to one precision.

    Attributes:
        bundle_bytes: size of the weights, with those of encoders in the bundle.
        method: of rounding; None for floats.
        memory_bytes: peak memory: the program, and copies of the largest layer.
        seconds: on this machine, as busy as it is now (`duration.seconds_of`).
        run: of the bundle; None where it cannot be predicted.
    """

    bundle_bytes: int
    method: Method | None
    memory_bytes: int
    seconds: float
    run: Run | None


def costs(model: Exportable) -> dict[str, Cost]:
    """The cost of each precision with default options."""
    names: tuple[PrecisionName, ...] = ("fp32", "int8", "int4")
    writes = own_calibration(model) is None
    flops = core_flops()
    return {name: _cost(model, name, writes=writes, flops=flops) for name in names}


def _cost(model: Exportable, precision: PrecisionName, *, writes: bool, flops: float) -> Cost:
    plan = resolve(model.kind, precision=precision, takes_one=model.takes_one)
    quantization = plan.quantization
    method = None if quantization is None else quantization.method
    layers = [
        layer
        for stack in model.module.modules()
        if isinstance(stack, nn.ModuleList)
        for layer in stack
    ]
    largest = max((count(layer) for layer in layers), default=0)
    part_bytes = 0
    for part in model.parts.values():
        of_part = resolve(part.kind, precision="fp32" if quantization is None else "int8")
        part_bytes += _blob_bytes(part, of_part.quantization)
    return Cost(
        bundle_bytes=_blob_bytes(model, quantization) + part_bytes,
        method=method,
        memory_bytes=PROGRAM_BYTES + round(LAYERS_AT_ONCE[method] * FLOAT_BYTES * largest),
        seconds=seconds_of(model, quantization, writes=writes, flops=flops),
        run=predict_run(model, quantization, more_bytes=part_bytes),
    )


def _blob_bytes(model: Exportable, quantization: Quantization | None) -> int:
    """Size of the weight file, with products and token tables in low-bit form if planned."""
    sizes = [FLOAT_BYTES * table.numel() for table in model.tables.values()]
    for name, owner, weight in weights_of(model.module):
        if quantization is None or not is_matrix(model, owner, weight):
            sizes.append(FLOAT_BYTES * weight.numel())
            continue
        scheme = scheme_of(name, weight.shape[-1], quantization, model.weights)
        groups = scheme.groups(weight.shape[-1]) * weight.numel() // weight.shape[-1]
        sizes += [groups * scheme.group * scheme.bits // 8, groups * FLOAT_BYTES]
        sizes += [] if scheme.symmetric else [groups * scheme.bits // 8]
    return sum(map(pages, sizes))
