"""The choice of a device, and the reason for it."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ortolan.cuda_setup import INSTALL, Part, missing_part
from ortolan.runtime.errors import DeviceError, shown

__all__ = ["Choice", "choose_device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A device, and in a few words why it was chosen."""

    device: str
    reason: str


def choose_device(
    device: str,
    offered: Collection[str],
    providers: Collection[str],
    *,
    missing: Callable[[], Part | None] = missing_part,
) -> Choice:
    """Choose the device to run on.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`. `auto` chooses a GPU if everything for it is
            present, and the CPU otherwise.
        offered: kinds of device that the bundle was made for.
        providers: execution providers of this onnxruntime.
        missing: returns what the machine lacks for CUDA; called only if it matters.

    Raises:
        DeviceError: the device is unknown, not usable here (names what is missing), or not one
            that the bundle was made for.
    """
    if not isinstance(device, str) or not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device):
        raise DeviceError(f"device must be auto, cpu, cuda or cuda:N (got {shown(device)}).")
    if device == "auto" and "cpu" in offered:
        obstacle = (
            "the bundle was made for the CPU"
            if "cuda" not in offered
            else _obstacle("cuda", offered, providers, missing)
        )
        return Choice(device="cpu", reason=obstacle)
    if device == "cpu":
        if "cpu" in offered:
            return Choice(device="cpu", reason="requested")
        raise DeviceError(f"device 'cpu': {_not_offered('cpu', offered)}")
    raise DeviceError(f"device {device!r}: {_obstacle(device, offered, providers, missing)}")


def _obstacle(
    device: str,
    offered: Collection[str],
    providers: Collection[str],
    missing: Callable[[], Part | None],
) -> str:
    """The first obstacle to CUDA: driver, libraries, package, bundle, this version of Ortolan."""
    part = missing()
    if part is not None:
        return f"{part.name} is missing. {part.remedy} `ortolan doctor` lists every part."
    if "CUDAExecutionProvider" not in providers:
        return f"this onnxruntime has no CUDA. Run: {INSTALL}"
    if "cuda" not in offered:
        return _not_offered("cuda", offered)
    return "this version of Ortolan runs on the CPU only. Choose the device cpu."


def _not_offered(kind: str, offered: Collection[str]) -> str:
    return (
        f"the bundle was made for {', '.join(offered)}, not for {kind}. "
        "Choose one of its devices, or export the checkpoint for this one."
    )
