"""How long an export will take on this machine, as busy as it is now."""

import time
from collections.abc import Mapping

import torch

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import SEQUENCE_LENGTH
from ortolan.export.low_bit import Quantization
from ortolan.export.parameters import count, is_matrix, weights_of
from ortolan.export.quantize import tune
from ortolan.export.settings import Plan
from ortolan.runtime.engine.threads import physical_cores

FIXED_S: Mapping[str, float] = {"trace": 5.0, "reference": 1.0, "weights": 2.0, "verify": 6.0}
"""Seconds of each step without its weights: imports, traces, processes, first use of a kernel."""

WITNESS_S, WITNESS_NS = 5.0, 58.0
"""Seconds in which the witness imports its libraries and answers about a tiny model, and
nanoseconds that it takes longer for each weight."""

WITNESS_LOGITS_NS = 12.0
"""Nanoseconds per weight until the witness has compared the logits of a first text."""

WITNESS_LIMIT_S, WITNESS_SHARE = 20.0, 0.1
"""Most seconds of a witness, or its largest share of the export, whichever is more."""

BASE_NS: Mapping[bool, float] = {False: 155.0, True: 65.0}
BASE_SHARES: Mapping[str, float] = {"reference": 0.4, "weights": 0.4, "verify": 0.2}
"""Nanoseconds per weight on one core of an export that does not calibrate, by whether it rounds;
and the share of each step."""

ROUND_NS = 235.0
"""Nanoseconds per weight on one core that `gptq` takes besides those of its tokens."""

CALIBRATE_NS, OUTPUT_NS, TRAIN_NS, WRITE_NS = 0.04, 0.02, 0.04, 0.04
"""Nanoseconds per weight and token for what `gptq` needs: the inputs of every product, outputs to
train scales on, a step of that, and a draft that writes the calibration text."""

MOST_CORES = 4
"""Cores that an export can use; more do not help."""

REFERENCE_FLOPS = 95e9
"""Float32 operations per second of the core of these measurements, by `core_flops`."""

SAMPLE_S = 0.3
"""Seconds that a core is measured for, long enough to take turns with other programs."""


def outlook(model: Exportable, plan: Plan, *, writes: bool, flops: float) -> dict[str, float]:
    """Estimate the seconds of every step of an export, in order.

    From measurements of models of up to 8B parameters on two cores, scaled by the number and speed
    of the cores. A model that generates slowly, or a slow disk, takes longer. `writes`: the model
    writes its calibration text.
    """
    ns = {"trace": 0.0, **_weight_ns(model, plan.quantization, writes)}
    weights, cores = count(model.module), min(physical_cores(), MOST_CORES)
    parts = sum(count(part.module) for part in model.parts.values())
    seconds = {step: FIXED_S.get(step, 0.0) + 1e-9 * ns[step] * weights / cores for step in ns}
    seconds["trace"] += 1e-9 * BASE_NS[plan.quantization is not None] * parts / cores
    slowness = REFERENCE_FLOPS / flops
    steps = {step: slowness * own for step, own in seconds.items() if own}
    if plan.options.witness:
        asking = slowness * (WITNESS_S + 1e-9 * WITNESS_NS * weights)
        steps["witness"] = min(asking, witness_limit(sum(steps.values())))
    return steps


def told(seconds: float, cheaper_s: float | None = None, *efforts: str) -> str:
    """A sentence about the time of an export, and of one with the next cheaper effort."""
    if cheaper_s is None:
        return f"about {_rounded(seconds)}"
    effort, cheaper = efforts
    return f"{_rounded(seconds)} with --effort {effort}, {_rounded(cheaper_s)} with {cheaper}"


def _rounded(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def witness_limit(export_s: float) -> float:
    """Most seconds that a witness may take, from the start of its process."""
    return max(WITNESS_LIMIT_S, WITNESS_SHARE * export_s)


def answerable_weights(seconds: float, flops: float) -> int:
    """Number of weights of the largest model whose logits a witness compares in this time."""
    seconds *= flops / REFERENCE_FLOPS
    return max(0, round(1e9 * (seconds - WITNESS_S) / WITNESS_LOGITS_NS))


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


def _weight_ns(
    model: Exportable, quantization: Quantization | None, writes: bool
) -> dict[str, float]:
    """Nanoseconds per weight on one core of the steps that grow with the weights, in order."""
    base = BASE_NS[quantization is not None]
    steps = {name: share * base for name, share in BASE_SHARES.items()}
    if quantization is None or quantization.method != "gptq":
        return steps
    tokens = quantization.calibration_sequences * min(SEQUENCE_LENGTH, model.context_length)
    products = [
        n for n, owner, weight in weights_of(model.module) if is_matrix(model, owner, weight)
    ]
    trained = tune.TOKENS * tune.steps_on(tokens, model, products) * quantization.trains_scales
    return {
        "reference": steps.pop("reference"),
        "write text": WRITE_NS * tokens * (writes and model.sides.has_decoder),
        "calibrate": ROUND_NS + CALIBRATE_NS * tokens,
        "outputs": OUTPUT_NS * tokens * (trained > 0),
        "train scales": TRAIN_NS * trained,
        **steps,
    }
