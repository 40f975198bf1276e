"""What would bring an export nearer to the trained model."""

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.calibration import can_read
from ortolan.export.precision import GROUP_SIZES
from ortolan.export.settings import Settings


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
    if plan.scheme.group > min(GROUP_SIZES):
        advice.append(f"--group-size {min(GROUP_SIZES)}")
    if settings.options.prefill_precision is not None:
        advice.append("no --prefill-precision")
    advice.append("--precision int8" if settings.precision == "int4" else "--precision fp32")
    return tuple(advice)
