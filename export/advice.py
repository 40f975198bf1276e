"""Warnings before an export, and advice after it on coming closer to the trained model."""

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import SEQUENCE_LENGTH
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.low_bit import Quantization
from ortolan.export.options import GROUP_SIZES
from ortolan.export.parameters import is_matrix, weights_of
from ortolan.export.quantize.effects import lengths
from ortolan.export.quantize.schemes import NARROW, is_block, scheme_of, stored_scheme
from ortolan.export.quantize.tune import obstacle
from ortolan.export.settings import Plan

UNCALIBRATED_WIDTH = 1024
"""Width below which uncalibrated 4-bit weights are usually poor; models of 384 and 576 are."""


def width_of(model: Exportable) -> int | None:
    """Width of the vectors between layers, if the config of the model or its decoder has one."""
    config = getattr(model.module, "config", None)
    for side in (config, getattr(config, "decoder", None)):
        width = getattr(side, "hidden_size", None)
        if isinstance(width, int):
            return width
    return None


def risks(model: Exportable, plan: Plan) -> tuple[str, ...]:
    """Reasons to expect that the export fails with poor quality, as far as the plan shows."""
    quantization, width = plan.quantization, width_of(model)
    if quantization is None or plan.auto or quantization.scheme.bits > 4 or width is None:
        return ()
    if model.origin.is_quantized and _keeps_blocks(model, quantization):
        return ()
    warnings = []
    method, group = quantization.method, quantization.scheme.group
    if method != "gptq" and quantization.sensitive is None and width < UNCALIBRATED_WIDTH:
        warnings.append(
            f"4 bits by {method} are usually poor in a model {width} wide, and a poor bundle is "
            f"deleted. {_calibrating(quantization, 'Leave out')}, choose --precision int8, or keep "
            "a poor bundle with --allow-poor."
        )
    if quantization.narrow_group is None and group > min(GROUP_SIZES) and width < NARROW:
        warnings.append(
            f"4 bits in groups of {group} are often poor in a model {width} wide. Choose "
            f"--group-size {min(GROUP_SIZES)}, or leave it out."
        )
    return tuple(warnings)


def untrained(model: Exportable, plan: Plan, inputs: Inputs) -> tuple[str, ...]:
    """Why the best effort will train no scales; empty where it does, or another was chosen.

    `inputs` are those to calibrate on, unless the model writes them.
    """
    quantization = plan.quantization
    if (
        quantization is None
        or plan.auto
        or not quantization.trains_scales
        or quantization.method != "gptq"
    ):
        return ()
    tokens = sum(lengths(model, inputs)) or (
        quantization.calibration_sequences * min(SEQUENCE_LENGTH, model.context_length)
    )
    names = [
        name
        for name, owner, weight in weights_of(model.module)
        if is_matrix(model, owner, weight)
        and stored_scheme(model.weights, name)
        != scheme_of(name, weight.shape[-1], quantization, model.weights)
    ]
    reason = obstacle(tokens, model, names)
    return (f"--effort best calibrates, but trains no scales: {reason}.",) if reason else ()


def _keeps_blocks(model: Exportable, quantization: Quantization) -> bool:
    """Whether every product in blocks keeps the codes of the source."""
    return all(
        stored_scheme(model.weights, name)
        == scheme_of(name, weight.shape[-1], quantization, model.weights)
        for name, owner, weight in weights_of(model.module)
        if is_block(name) and is_matrix(model, owner, weight)
    )


def _calibrating(quantization: Quantization, leave_out: str) -> str:
    """How to calibrate, from the options that prevent it; `leave_out` as the sentence needs it."""
    if quantization.scheme.bits == 8:
        return "--method gptq"
    return f"{leave_out} {' and '.join(quantization.options)} to calibrate"


def advise(model: Exportable, plan: Plan) -> tuple[str, ...]:
    """Options that bring the bundle closer, the cheapest first; none where nothing is rounded."""
    quantization = plan.quantization
    if quantization is None:
        return ()
    if plan.auto is not None:
        if plan.has_int8_prefill:
            return ("--prefill-precision float",)
        is_sized = plan.auto.target_size is not None
        return ("a larger --target-size" if is_sized else "a smaller --max-kl",)
    if model.origin.is_quantized and plan.precision == "int8" and quantization.method == "rtn":
        return ("--precision fp32",)  # other methods would round the codes of the source again
    advice = []
    if quantization.method != "gptq":
        advice.append(_calibrating(quantization, "leaving out"))
    elif not quantization.trains_scales:
        advice.append("--effort best")
    if quantization.head.bits < 8:
        advice.append("--head-bits 8")
    has_small_groups = (
        quantization.narrow_group is not None and (width_of(model) or NARROW) < NARROW
    )
    if quantization.scheme.group > min(GROUP_SIZES) and not has_small_groups:
        advice.append(f"--group-size {min(GROUP_SIZES)}")
    if plan.has_int8_prefill:
        advice.append("--prefill-precision float")
    advice.append("--precision int8" if plan.precision == "int4" else "--precision fp32")
    return tuple(advice)
