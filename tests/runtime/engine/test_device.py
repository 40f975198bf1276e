import pytest

from ortolan.cuda_setup import Part
from ortolan.runtime.engine.device import choose_device
from ortolan.runtime.errors import DeviceError

CPU, CUDA = ("CPUExecutionProvider",), ("CUDAExecutionProvider", "CPUExecutionProvider")
BOTH = ("cpu", "cuda")


def whole() -> None:
    """A machine that lacks nothing."""


def without_driver() -> Part:
    return Part(name="NVIDIA driver", found=None, remedy="Install it.")


def never() -> Part | None:
    raise AssertionError("the machine was examined")


def test_cpu_is_taken_without_looking_for_a_gpu() -> None:
    choice = choose_device("cpu", BOTH, CPU, missing=never)
    assert (choice.device, choice.reason) == ("cpu", "requested")


def test_auto_for_a_bundle_of_the_cpu_says_so_without_looking_for_a_gpu() -> None:
    choice = choose_device("auto", ("cpu",), CUDA, missing=never)
    assert (choice.device, choice.reason) == ("cpu", "the bundle was made for the CPU")


def test_auto_names_what_is_missing_for_the_gpu() -> None:
    choice = choose_device("auto", BOTH, CPU, missing=without_driver)
    assert choice.device == "cpu"
    assert "NVIDIA driver" in choice.reason
    assert "Install it." in choice.reason


def test_auto_with_all_parts_says_that_this_version_has_no_cuda() -> None:
    assert "on the CPU only" in choose_device("auto", BOTH, CUDA, missing=whole).reason


@pytest.mark.parametrize("device", ["", "gpu", "CPU", "cpu:0", "cuda:", "cuda:x", "cuda:0\n"])
def test_an_unknown_device_is_an_error_that_names_the_known(device: str) -> None:
    with pytest.raises(DeviceError, match="auto, cpu, cuda or cuda:N"):
        choose_device(device, BOTH, CPU, missing=never)


def test_a_bundle_for_cuda_alone_does_not_run_on_the_cpu() -> None:
    with pytest.raises(DeviceError, match="made for cuda, not for cpu"):
        choose_device("cpu", ("cuda",), CPU, missing=never)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_bundle_for_cuda_alone_names_what_is_missing(device: str) -> None:
    with pytest.raises(DeviceError, match="NVIDIA driver"):
        choose_device(device, ("cuda",), CPU, missing=without_driver)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_names_the_first_obstacle(device: str) -> None:
    with pytest.raises(DeviceError, match=f"device '{device}': .*NVIDIA driver"):
        choose_device(device, ("cpu",), CPU, missing=without_driver)
    with pytest.raises(DeviceError, match=r'pip install "ortolan\[cuda\]"'):
        choose_device(device, ("cpu",), CPU, missing=whole)
    with pytest.raises(DeviceError, match="made for cpu, not for cuda"):
        choose_device(device, ("cpu",), CUDA, missing=whole)
    with pytest.raises(DeviceError, match="on the CPU only"):
        choose_device(device, BOTH, CUDA, missing=whole)
