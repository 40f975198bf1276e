"""The choice of a device, and the reason for it.

Knows names of devices, of onnxruntime's providers, and what a machine lacks for CUDA. Does not
know onnxruntime itself.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ortolan.cuda_setup import INSTALL, Part, missing_part
from ortolan.runtime.errors import DeviceError, shown

__all__ = ["Choice", "choose_device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A device, and in a few words why it is this one."""

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
        device: `auto`, `cpu`, `cuda` or `cuda:N`. `auto` takes a GPU where everything for it is
            there, and the CPU otherwise.
        offered: kinds of device that the bundle was made for.
        providers: what this onnxruntime can compute with.
        missing: gives what the machine lacks for CUDA; called only where it matters.

    Raises:
        DeviceError: the device is unknown, not usable here (names what is missing), or not one
            the bundle was made for.
    """
    if not isinstance(device, str) or not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device):
        raise DeviceError(f"device: expected auto, cpu, cuda or cuda:N, got {shown(device)}.")
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
    """The first thing in the way of CUDA: driver, libraries, package, bundle, this version."""
    part = missing()
    if part is not None:
        return (
            f"expected all that CUDA needs, got no {part.name}. {part.remedy} "
            "`ortolan doctor` lists every part."
        )
    if "CUDAExecutionProvider" not in providers:
        return f"expected an onnxruntime with CUDA, got one without. Run: {INSTALL}"
    if "cuda" not in offered:
        return _not_offered("cuda", offered)
    return "this version of Ortolan generates on the CPU only. Choose the device cpu."


def _not_offered(kind: str, offered: Collection[str]) -> str:
    return (
        f"expected a bundle made for {kind}, got one for {', '.join(offered)}. "
        "Choose a device of the bundle, or export the checkpoint for this one."
    )
