"""Estimates what an export costs, and how its bundle will run."""

import time
from collections.abc import Mapping
from functools import cache

import msgspec
import torch
from torch import nn

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import SEQUENCE_LENGTH, own_calibration
from ortolan.export.options import Method, PrecisionName
from ortolan.export.preview.parameters import count, is_matrix, weights_of
from ortolan.export.preview.run import Run, predict_run
from ortolan.export.quantize.guide import is_affordable
from ortolan.export.quantize.schemes import scheme_of
from ortolan.export.settings import Quantization, resolve
from ortolan.export.sizes import pages
from ortolan.runtime.engine.threads import physical_cores

PROGRAM_BYTES = 550 << 20
"""Bytes of memory of an export without the model: PyTorch, ONNX, a trace."""

LAYERS_AT_ONCE: Mapping[Method | None, float] = {None: 1.5, "rtn": 1.5, "hqq": 1.5, "gptq": 4.0}
"""Float32 copies of the largest layer that are in memory at once, per method."""

START_S = 14.0
"""Seconds of an export without its weights: start, traces, first use of each kernel."""

WEIGHT_NS: Mapping[Method | None, float] = {None: 155.0, "rtn": 65.0, "hqq": 100.0, "gptq": 300.0}
"""Nanoseconds per weight on one core, with reference and verification; see `Cost.seconds`."""

CALIBRATE_NS, GUIDE_NS, WRITE_NS = 0.04, 0.12, 0.04
"""Nanoseconds per weight and token for what `gptq` needs: the inputs of every product, the
gradients that guide it, and a draft that writes the calibration text."""

MOST_CORES = 4
"""Cores that an export can use; more do not help."""

REFERENCE_FLOPS = 95e9
"""Float32 operations per second of the core of these measurements, by `core_flops`."""

FLOAT_BYTES = 4
"""Bytes of a weight that is not rounded, on the CPU."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Estimated cost of an export to one precision.

    Attributes:
        bundle_bytes: size of the weights, with those of encoders in the bundle.
        method: of rounding; None for floats.
        memory_bytes: peak memory: the program, and copies of the largest layer.
        seconds: on this machine, from measurements of models of up to 8B parameters on two cores,
            scaled by the number and speed of the cores. Includes synthetic calibration text and the
            gradients that guide `gptq`, where default options need them. A model that generates
            slowly, or a slow disk, takes longer.
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
    return {name: _cost(model, name, writes=writes) for name in names}


def _cost(model: Exportable, precision: PrecisionName, *, writes: bool) -> Cost:
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
    weight_seconds = 1e-9 * _weight_ns(model, quantization, writes) * count(model.module)
    part_bytes = 0
    for part in model.parts.values():
        of_part = resolve(part.kind, precision="fp32" if quantization is None else "int8")
        weight_seconds += 1e-9 * _weight_ns(part, of_part.quantization, False) * count(part.module)
        part_bytes += _blob_bytes(part, of_part.quantization)
    seconds = START_S + weight_seconds / min(physical_cores(), MOST_CORES)
    return Cost(
        bundle_bytes=_blob_bytes(model, quantization) + part_bytes,
        method=method,
        memory_bytes=PROGRAM_BYTES + round(LAYERS_AT_ONCE[method] * FLOAT_BYTES * largest),
        seconds=round(REFERENCE_FLOPS / core_flops() * seconds, 1),
        run=predict_run(model, quantization, more_bytes=part_bytes),
    )


@cache
def core_flops() -> float:
    """Float32 operations per second of one core, measured once in about 50 ms."""
    threads, size = torch.get_num_threads(), 512
    matrix = torch.ones(size, size)
    torch.set_num_threads(1)
    try:
        # CPU time of this thread: other programs on a busy machine do not count.
        seconds = []
        for _ in range(12):
            began = time.thread_time()
            torch.mm(matrix, matrix)
            seconds.append(time.thread_time() - began)
    finally:
        torch.set_num_threads(threads)
    return 2 * size**3 / max(min(seconds), 1e-9)


def _weight_ns(model: Exportable, quantization: Quantization | None, writes: bool) -> float:
    """Nanoseconds per weight on one core, with everything that grows with the weights."""
    if quantization is None or quantization.method != "gptq":
        return WEIGHT_NS[None if quantization is None else quantization.method]
    tokens = quantization.calibration_sequences * min(SEQUENCE_LENGTH, model.context_length)
    products = [
        n for n, owner, weight in weights_of(model.module) if is_matrix(model, owner, weight)
    ]
    guides = is_affordable(model, tokens, products)
    writes = writes and model.sides.has_decoder
    of_token = CALIBRATE_NS + GUIDE_NS * guides + WRITE_NS * writes
    return WEIGHT_NS[quantization.method] + of_token * tokens


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
