"""Execution providers of onnxruntime: which one computes on a device, and why one may not start.

    device   provider                  package
    cpu      CPUExecutionProvider      onnxruntime
    webgpu   WebGpuExecutionProvider   onnxruntime-ep-webgpu: any GPU with Vulkan, D3D12 or Metal
    cuda     CUDAExecutionProvider     onnxruntime-gpu

WebGPU is a plugin: a library that is registered once per process and finds its GPUs itself.

onnxruntime computes on the CPU without a word if a provider cannot start. So every new session is
checked (`check_started`), and `obstacle` starts one with a single node.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Collection
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.cuda_setup import INSTALL, missing_part
from ortolan.distribution import pip_install
from ortolan.runtime.errors import DeviceError, MemoryPlanError, MissingExtraError, shown
from ortolan.runtime.graph.small_model import node_of, write_model

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import State

try:
    import onnxruntime  # type: ignore[import-untyped]
except ImportError as error:
    raise MissingExtraError(
        f"ortolan.runtime needs onnxruntime. Run: {pip_install('cpu')}"
    ) from error

ort: Any = onnxruntime

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "webgpu": "WebGpuExecutionProvider",
    "cuda": "CUDAExecutionProvider",
}

_MEMORY = {"cpu": "cpu", "webgpu": "gpu", "cuda": "cuda"}
"""Kinds of memory, as onnxruntime's OrtValues name them."""

_REMEDY = {
    "webgpu": "Install the driver of the GPU; on Linux also its Vulkan driver and the loader "
    "(Debian: libvulkan1 mesa-vulkan-drivers); in a container, pass /dev/dri to it.",
    "cuda": "Run `ortolan doctor`, which lists every part that CUDA needs.",
}

_FATAL_ONLY = 4

_MOVES = frozenset(
    {
        "Cast",
        "ConstantOfShape",
        "Gather",
        "Identity",
        "Reshape",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that compute nothing: they may be on the CPU, where onnxruntime also inserts some."""

_RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"

_FOLD_DEQUANTIZED = "session.disable_quant_qdq"
"""Dequantize weights once at loading: WebGPU has no kernel for it in 4 bits."""

_lock = threading.Lock()


def onnxruntime_version() -> str:
    """Version of the installed onnxruntime."""
    return str(ort.__version__)


def available_providers() -> tuple[str, ...]:
    """Execution providers of the installed onnxruntime, best first; they may not work here."""
    return tuple(ort.get_available_providers())


def choose_device(
    device: str, offered: Collection[str], obstacle: Callable[[str], str | None]
) -> tuple[str, str]:
    """Choose the device to run on. Returns it, and in a few words why."""
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
        return device, "requested"
    obstacles: list[str] = []
    for name in offered:
        reason = obstacle(name)
        if reason is None:
            made = f"the bundle was made for {', '.join(offered)}"
            return name, "; ".join([*obstacles, made])
        obstacles.append(f"{name}: {reason}")
    raise DeviceError(f"device 'auto': {obstacles[0]}")


def kind_of(device: str) -> str:
    """The kind of a device: `cuda` of `cuda:1`."""
    return device.partition(":")[0]


def memory_name(device: str) -> tuple[str, int]:
    """Kind and index of a device's memory, as onnxruntime names them."""
    return _MEMORY[kind_of(device)], int(device.partition(":")[2] or 0)


def use_device(options: Any, device: str) -> list[Any]:
    """Make a session with these options compute on a device."""
    kind, cpu = kind_of(device), PROVIDERS["cpu"]
    if kind != "cpu":
        options.add_session_config_entry(_RECORD_PLACEMENT, "1")
    if kind == "webgpu":
        options.add_session_config_entry(_FOLD_DEQUANTIZED, "1")
        options.add_provider_for_devices(_webgpus()[:1], {})
        return []
    if kind == "cuda":
        index = str(memory_name(device)[1])
        return [(PROVIDERS[kind], {"device_id": index, "use_tf32": "0"}), cpu]
    return [cpu]


def check_started(session: Any, device: str, counting: Callable[[], Collection[str]]) -> None:
    """Check that a session computes on its device, by onnxruntime's own record."""
    kind = kind_of(device)
    if PROVIDERS[kind] not in session.get_providers():
        raise DeviceError(f"device {device!r} did not start. {_REMEDY[kind]}")
    if kind == "cpu":
        return
    names = counting()
    misplaced = Counter(
        node.op_type
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name == PROVIDERS["cpu"]
        for node in part.get_nodes()
        if node.op_type not in _MOVES and node.name not in names
    )
    if misplaced:
        listed = ", ".join(f"{count} x {name}" for name, count in sorted(misplaced.items()))
        raise DeviceError(
            f"device {device!r} has no kernels for some nodes of this bundle: {listed}. "
            "Choose the device cpu."
        )


def obstacle(device: str, *, precision: str = "fp32") -> str | None:
    """Return why a device does not compute bundles of a precision here; `None` if it does."""
    kind = kind_of(device)
    if kind == "cpu":
        return None
    if kind not in PROVIDERS:
        return f"this version of Ortolan does not know {kind}."
    reason = _missing_webgpu() if kind == "webgpu" else _missing_cuda()
    if reason is not None:
        return reason
    return _start(device, "float16" if precision == "fp16" else "float32")


def allocate_on(array: NDArray[Any], memory: tuple[str, int]) -> Any:
    """Copy an array to the memory of a device, and return the OrtValue there."""
    try:
        return ort.OrtValue.ortvalue_from_numpy(array, *memory)
    except Exception as error:  # onnxruntime's own error classes have no common base
        raise no_memory() from error


def no_memory() -> MemoryPlanError:
    """The error of a device that has no memory for states."""
    return MemoryPlanError(
        "The device has not enough memory for these states. Generate fewer sequences at once, or "
        "shorter ones."
    )


def share(array: NDArray[Any]) -> Any:
    """Return an OrtValue over the memory of an array."""
    return ort.OrtValue.ortvalue_from_numpy(array)


def bind_state(binding: Any, state: "State", read: Any, written: Any) -> None:
    """Bind a state to its buffers: arrays of the host, or parts of buffers on a device."""
    if isinstance(read, tuple):
        binding.bind_input(state.input, *read)
        binding.bind_output(state.output, *written)
        return
    shared = share(read)
    binding.bind_ortvalue_input(state.input, shared)
    binding.bind_ortvalue_output(state.output, shared if written is read else share(written))


def _missing_cuda() -> str | None:
    part = missing_part()
    if part is not None:
        return f"{part.name} is missing. {part.remedy} `ortolan doctor` lists every part."
    if PROVIDERS["cuda"] not in available_providers():
        return f"this onnxruntime has no CUDA. Run: {INSTALL}"
    return None


def _missing_webgpu() -> str | None:
    try:
        found = _webgpus()
    except ImportError:
        return f"onnxruntime-ep-webgpu is not installed. Run: {pip_install('webgpu')}"
    except Exception as error:  # onnxruntime's own error classes have no common base
        return f"onnxruntime-ep-webgpu cannot be loaded: {str(error).partition(chr(10))[0][:300]}"
    return None if found else f"onnxruntime finds no GPU. {_REMEDY['webgpu']}"


def _webgpus() -> list[Any]:
    with _lock:
        _register_webgpu()
    return [device for device in ort.get_ep_devices() if device.ep_name == PROVIDERS["webgpu"]]


@cache
def _register_webgpu() -> None:
    plugin = import_module("onnxruntime_ep_webgpu")
    ort.register_execution_provider_library("ortolan.webgpu", plugin.get_library_path())


def _start(device: str, dtype: str) -> str | None:
    """Why a graph of one node does not compute on a device."""
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    one_node = write_model([node_of("Abs", ["x"], "y")], inputs={"x": dtype}, outputs={"y": dtype})
    try:
        session = ort.InferenceSession(
            one_node, options, use_device(options, device), enable_fallback=0
        )
        check_started(session, device, tuple)
    except DeviceError as error:
        return str(error)
    except Exception as error:  # onnxruntime's own error classes have no common base
        # before the reason stand a file of onnxruntime and a condition
        reason = str(error).rpartition(" was false. ")[2].partition("\n")[0].strip()
        return f"it did not start ({reason[:300]}). {_REMEDY[kind_of(device)]}"
    try:
        session.run(None, {"x": np.ones(1, dtype)})
    except Exception:  # as above
        return f"it does not compute {dtype}. Export the checkpoint with --precision int8 or int4."
    return None
