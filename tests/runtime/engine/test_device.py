import re
from collections.abc import Callable

import pytest

from ortolan.runtime.engine.device import choose_device
from ortolan.runtime.errors import DeviceError

Obstacle = Callable[[str], str | None]

ALL = ("cuda", "webgpu", "cpu")


def works(device: str) -> None:
    """Every device works."""


def only_cpu(device: str) -> str | None:
    return None if device == "cpu" else f"no driver for {device}. Install it."


def never(device: str) -> str | None:
    raise AssertionError("the machine was examined")


@pytest.mark.parametrize(
    ("device", "offered", "obstacle", "chosen", "reason"),
    [
        ("cpu", ALL, works, "cpu", "requested"),
        ("webgpu", ALL, works, "webgpu", "requested"),
        ("cuda:1", ALL, works, "cuda:1", "requested"),
        ("auto", ALL, works, "cuda", "made for cuda, webgpu, cpu"),
        ("auto", ("webgpu", "cuda"), works, "webgpu", "made for webgpu, cuda"),
        ("auto", ("webgpu", "cpu"), only_cpu, "cpu", "webgpu: no driver for webgpu. Install it."),
        ("auto", ("cpu",), works, "cpu", "made for cpu"),
    ],
)
def test_a_device_is_chosen_with_a_reason(
    device: str, offered: tuple[str, ...], obstacle: Obstacle, chosen: str, reason: str
) -> None:
    choice = choose_device(device, offered, obstacle)
    assert choice.device == chosen
    assert reason in choice.reason


@pytest.mark.parametrize(
    "device", ["", "gpu", "CPU", "cpu:0", "webgpu:1", "cuda:", "cuda:x", "cuda:0\n"]
)
def test_an_unknown_device_is_an_error_that_names_the_others(device: str) -> None:
    with pytest.raises(DeviceError, match="auto, cpu, webgpu, cuda or cuda:N"):
        choose_device(device, ALL, never)


@pytest.mark.parametrize(
    ("device", "offered", "obstacle", "reason"),
    [
        ("cpu", ("cuda",), never, "made for cuda, not for cpu"),
        ("cuda", ("cpu", "webgpu"), never, "made for cpu, webgpu, not for cuda"),
        ("webgpu", ("cpu",), never, "made for cpu, not for webgpu"),
        ("auto", ("cuda",), only_cpu, "device 'auto': cuda: no driver for cuda"),
        ("cuda:1", ("cuda",), only_cpu, "device 'cuda:1': no driver for cuda:1"),
        ("webgpu", ALL, only_cpu, "device 'webgpu': no driver for webgpu. Install it."),
    ],
)
def test_the_first_obstacle_is_named(
    device: str, offered: tuple[str, ...], obstacle: Obstacle, reason: str
) -> None:
    with pytest.raises(DeviceError, match=re.escape(reason)):
        choose_device(device, offered, obstacle)
