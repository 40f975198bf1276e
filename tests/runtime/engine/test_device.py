from collections.abc import Callable

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal

from ortolan.runtime.engine.providers import choose_device

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
    choice, why = choose_device(device, offered, obstacle)
    assert choice == chosen
    assert reason in why


REFUSED: dict[str, tuple[str, tuple[str, ...], Obstacle]] = {
    **{f"unknown {name!r}": (name, ALL, never) for name in ("", "gpu", "CPU", "cpu:0", "cuda:x")},
    "two lines": ("cuda:0\n", ALL, never),
    "not made for the CPU": ("cpu", ("cuda",), never),
    "not made for CUDA": ("cuda", ("cpu", "webgpu"), never),
    "no driver for all": ("auto", ("cuda",), only_cpu),
    "no driver for a card": ("cuda:1", ("cuda",), only_cpu),
    "no driver": ("webgpu", ALL, only_cpu),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_device_that_is_unknown_or_does_not_work_is_refused(
    name: str, snapshot: SnapshotAssertion
) -> None:
    assert refusal(lambda: choose_device(*REFUSED[name])) == snapshot
