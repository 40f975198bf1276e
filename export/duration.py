"""How long an export will take on this machine, as busy as it is now."""

import time
from collections.abc import Mapping

import torch

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import SEQUENCE_LENGTH
from ortolan.export.low_bit import Quantization
from ortolan.export.options import Method
from ortolan.export.parameters import count, is_matrix, weights_of
from ortolan.export.quantize import tune
from ortolan.export.settings import Plan
from ortolan.runtime.engine.threads import physical_cores

START_S = 14.0
"""Seconds of an export without its weights: start, traces, first use of each kernel."""

WITNESS_S, WITNESS_NS = 5.0, 58.0
"""Seconds in which the witness imports its libraries and answers about a tiny model, and
nanoseconds that it takes longer for each weight."""

WITNESS_LIMIT_S, WITNESS_SHARE = 20.0, 0.1
"""Most seconds of a witness, or its largest share of the export, whichever is more."""

WEIGHT_NS: Mapping[Method | None, float] = {None: 155.0, "rtn": 65.0, "gptq": 300.0}
"""Nanoseconds per weight on one core, with reference and verification; see `seconds_of`."""

CALIBRATE_NS, TRAIN_NS, WRITE_NS = 0.04, 0.045, 0.04
"""Nanoseconds per weight and token for what `gptq` needs: the inputs of every product, a step that
trains scales, and a draft that writes the calibration text."""

MOST_CORES = 4
"""Cores that an export can use; more do not help."""

REFERENCE_FLOPS = 95e9
"""Float32 operations per second of the core of these measurements, by `core_flops`."""

SAMPLE_S = 0.3
"""Seconds that a core is measured for, long enough to take turns with other programs."""


def seconds_of(model: Exportable, plan: Plan, *, writes: bool, flops: float) -> float:
    """Estimate the seconds of an export; `writes`: the model writes its calibration text.

    From measurements of models of up to 8B parameters on two cores, scaled by the number and speed
    of the cores. A model that generates slowly, or a slow disk, takes longer.
    """
    quantization = plan.quantization
    weight_ns = _weight_ns(model, quantization, writes) * count(model.module)
    part_ns = WEIGHT_NS[None if quantization is None else "rtn"]
    weight_ns += sum(part_ns * count(part.module) for part in model.parts.values())
    slowness = REFERENCE_FLOPS / flops
    whole = slowness * (START_S + 1e-9 * weight_ns / min(physical_cores(), MOST_CORES))
    asking = slowness * (WITNESS_S + 1e-9 * WITNESS_NS * count(model.module))
    return round(whole + min(asking, witness_limit(whole)) * plan.options.witness, 1)


def witness_limit(export_s: float) -> float:
    """Most seconds that a witness may take, from the start of its process."""
    return max(WITNESS_LIMIT_S, WITNESS_SHARE * export_s)


def core_flops() -> float:
    """Float32 operations per second of a core, in `SAMPLE_S` seconds.

    One thread computes and the clock of the wall counts, so that other programs on a busy machine
    slow the sample down as they will the export. Several threads would wait for each other in every
    product, which most of an export does not.
    """
    size, threads = 512, torch.get_num_threads()
    matrix = torch.ones(size, size)
    torch.set_num_threads(1)
    torch.mm(matrix, matrix)
    began, products, passed = time.perf_counter(), 0, 0.0
    while passed < SAMPLE_S:
        torch.mm(matrix, matrix)
        products += 1
        passed = time.perf_counter() - began
    torch.set_num_threads(threads)
    return 2 * size**3 * products / passed


def _weight_ns(model: Exportable, quantization: Quantization | None, writes: bool) -> float:
    """Nanoseconds per weight on one core, with everything that grows with the weights."""
    if quantization is None or quantization.method != "gptq":
        return WEIGHT_NS[None if quantization is None else quantization.method]
    tokens = quantization.calibration_sequences * min(SEQUENCE_LENGTH, model.context_length)
    products = [
        n for n, owner, weight in weights_of(model.module) if is_matrix(model, owner, weight)
    ]
    trained = tune.TOKENS * tune.steps_on(tokens, model, products)
    writes = writes and model.sides.has_decoder
    of_text = (CALIBRATE_NS + WRITE_NS * writes) * tokens
    of_text += TRAIN_NS * trained * quantization.trains_scales
    return WEIGHT_NS[quantization.method] + of_text
