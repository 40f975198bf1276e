"""The choice of a device, and the reason for it."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ortolan.runtime.errors import DeviceError, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A device, and in a few words why it was chosen."""

    device: str
    reason: str


def choose_device(
    device: str, offered: Collection[str], obstacle: Callable[[str], str | None]
) -> Choice:
    """Choose the device to run on."""
    if not isinstance(device, str) or not re.fullmatch(r"auto|cpu|webgpu|cuda(:\d{1,3})?", device):
        raise DeviceError(
            f"device must be auto, cpu, webgpu, cuda or cuda:N (got {shown(device)})."
        )
    if device != "auto":
        kind = kind_of(device)
        if kind not in offered:
            raise DeviceError(
                f"device {device!r}: the bundle was made for {', '.join(offered)}, not for {kind}. "
                "Choose one of its devices, or export the checkpoint for this one."
            )
        reason = obstacle(device)
        if reason is not None:
            raise DeviceError(f"device {device!r}: {reason}")
        return Choice(device=device, reason="requested")
    obstacles: list[str] = []
    for name in offered:
        reason = obstacle(name)
        if reason is None:
            made = f"the bundle was made for {', '.join(offered)}"
            return Choice(device=name, reason="; ".join([*obstacles, made]))
        obstacles.append(f"{name}: {reason}")
    raise DeviceError(f"device 'auto': {obstacles[0]}")


def kind_of(device: str) -> str:
    """The kind of a device: `cuda` of `cuda:1`."""
    return device.partition(":")[0]
