import re
from collections.abc import Callable

import pytest

from ortolan.cuda_setup import Part
from ortolan.runtime.engine.device import choose_device
from ortolan.runtime.errors import DeviceError

CPU, CUDA = ("CPUExecutionProvider",), ("CUDAExecutionProvider", "CPUExecutionProvider")
BOTH = ("cpu", "cuda")

Missing = Callable[[], Part | None]


def whole() -> None:
    """A machine with everything that CUDA needs."""


def without_driver() -> Part:
    return Part(name="NVIDIA driver", found=None, remedy="Install it.")


def never() -> Part | None:
    raise AssertionError("the machine was examined")


@pytest.mark.parametrize(
    ("device", "offered", "providers", "missing", "reason"),
    [
        ("cpu", BOTH, CPU, never, "requested"),
        ("auto", ("cpu",), CUDA, never, "made for the CPU"),
        ("auto", BOTH, CPU, without_driver, "NVIDIA driver is missing. Install it."),
        ("auto", BOTH, CUDA, whole, "on the CPU only"),
    ],
)
def test_the_cpu_is_chosen_with_a_reason(
    device: str,
    offered: tuple[str, ...],
    providers: tuple[str, ...],
    missing: Missing,
    reason: str,
) -> None:
    choice = choose_device(device, offered, providers, missing=missing)
    assert choice.device == "cpu"
    assert reason in choice.reason


@pytest.mark.parametrize("device", ["", "gpu", "CPU", "cpu:0", "cuda:", "cuda:x", "cuda:0\n"])
def test_an_unknown_device_is_an_error_that_names_the_others(device: str) -> None:
    with pytest.raises(DeviceError, match="auto, cpu, cuda or cuda:N"):
        choose_device(device, BOTH, CPU, missing=never)


@pytest.mark.parametrize(
    ("device", "offered", "providers", "missing", "reason"),
    [
        ("cpu", ("cuda",), CPU, never, "made for cuda, not for cpu"),
        ("auto", ("cuda",), CPU, without_driver, "device 'auto': NVIDIA driver"),
        ("cuda", ("cuda",), CPU, without_driver, "device 'cuda': NVIDIA driver"),
        ("cuda:1", ("cpu",), CPU, without_driver, "device 'cuda:1': NVIDIA driver"),
        ("cuda", ("cpu",), CPU, whole, 'pip install "ortolan[cuda]"'),
        ("cuda", ("cpu",), CUDA, whole, "made for cpu, not for cuda"),
        ("cuda", BOTH, CUDA, whole, "on the CPU only"),
    ],
)
def test_the_first_obstacle_is_named(
    device: str,
    offered: tuple[str, ...],
    providers: tuple[str, ...],
    missing: Missing,
    reason: str,
) -> None:
    with pytest.raises(DeviceError, match=re.escape(reason)):
        choose_device(device, offered, providers, missing=missing)
