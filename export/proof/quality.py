"""What would bring an export nearer to the trained model."""

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import can_read
from ortolan.export.precision import GROUP_SIZES
from ortolan.export.quantize.plan import NARROW
from ortolan.export.settings import Settings

UNCALIBRATED_WIDTH = 1024
"""Width below which 4 bits without calibration are usually poor: models of 384 and 576 are."""


def width_of(model: Exportable) -> int | None:
    """The width of the vectors between layers, as a config or that of its decoder says."""
    config = getattr(model.module, "config", None)
    for each in (config, getattr(config, "decoder", None)):
        width = getattr(each, "hidden_size", None)
        if isinstance(width, int):
            return width
    return None


def risks(model: Exportable, settings: Settings) -> tuple[str, ...]:
    """Why an export will probably be refused as poor, as far as its settings show."""
    plan, width = settings.quantization, width_of(model)
    if plan is None or settings.auto is not None or plan.scheme.bits > 4 or width is None:
        return ()
    found = []
    if plan.method != "gptq" and plan.keeps == "none" and width < UNCALIBRATED_WIDTH:
        found.append(
            f"4 bits by {plan.method} are usually poor in a model {width} wide, and a poor bundle "
            "is not kept. Leave --method out to calibrate."
        )
    if plan.narrow is None and plan.scheme.group > min(GROUP_SIZES) and width < NARROW:
        found.append(
            f"4 bits in groups of {plan.scheme.group} are often poor in a model {width} wide. "
            f"Choose --group-size {min(GROUP_SIZES)}, or leave it out."
        )
    return tuple(found)


def advise(model: Exportable, settings: Settings) -> tuple[str, ...]:
    """Options that bring it nearer, the cheapest first; none where nothing is rounded."""
    plan = settings.quantization
    if plan is None:
        return ()
    if settings.auto is not None:
        is_sized = settings.auto.target_size is not None
        return ("a larger --target-size" if is_sized else "a smaller --max-kl",)
    advice = []
    if plan.method != "gptq" and can_read(model):
        advice.append("--method gptq with --calibration FILE")
    if plan.head.bits < 8:
        advice.append("--head-bits 8")
    has_small_groups = plan.narrow is not None and (width_of(model) or NARROW) < NARROW
    if plan.scheme.group > min(GROUP_SIZES) and not has_small_groups:
        advice.append(f"--group-size {min(GROUP_SIZES)}")
    if settings.options.prefill_precision is not None:
        advice.append("no --prefill-precision")
    advice.append("--precision int8" if settings.precision == "int4" else "--precision fp32")
    return tuple(advice)
