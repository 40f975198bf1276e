"""Loads an unverified bundle in a subprocess first.

A graph that passes every check may still crash the process that loads it, or never finish: a kernel
is code. So a fresh Python, never a fork, goes first with limits on memory, time and files
(`first_load_child`). This is not a sandbox: an exploited kernel would have the user's rights.
"""

import io
import signal
import subprocess
import sys
import threading
from typing import Literal

import msgspec

from ortolan.errors import OrtolanError
from ortolan.freezing import CHILD, starts_no_child
from ortolan.runtime import errors, limits
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.kinds import ON_DEMAND
from ortolan.runtime.bundle.packed import Packed, find_packed
from ortolan.runtime.engine.memory_plan import check_load, plan_memory, size
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.engine.slots import CAPACITY_STEP
from ortolan.runtime.errors import FirstLoadError
from ortolan.runtime.machine.memory import available_memory, free_swap
from ortolan.runtime.machine.python_process import python_process
from ortolan.runtime.verification.verified import is_verified, remember, stamps

_CHILD = ("-m", CHILD)

_ERRORS = {
    error.__name__: error
    for error in vars(errors).values()
    if isinstance(error, type)
    and issubclass(error, OrtolanError)
    and not issubclass(error, FirstLoadError | errors.ServiceError)
}
"""Error classes that the parent raises again."""

_TO_FLOAT32 = {"float32": 1, "float16": 2, "bfloat16": 2}
"""Growth of a weight that is widened to float32; for other types 8, as for 4 bits."""

_ANSWER_BYTES = 1 << 16
"""Bytes read of an answer: a corrupted child may write forever."""

_ADVICE = (
    "Do not load this bundle: it would do the same to your process. Get a new copy. If you trust "
    "its author and this machine is just small or slow, pass isolate=False, or --no-isolate on "
    "the command line."
)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The bundle that the child loads, and its limits.

    Attributes:
        memory: bytes of address space on top of what the child starts with; `None` leaves memory
            and written files unlimited, as drivers of GPUs need.
        seconds: processor time.
    """

    folder: str
    device: str
    packed: str | None
    memory: int | None
    seconds: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The child's error, by class name and text. No error means success."""

    error: str | None = None
    text: str = ""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of `try_load`.

    Attributes:
        outcome: `verified`: made, loaded or verified here before, so nothing was tried; `passed`;
            `refused`: loading raises an error; `ended`: the child crashed or exceeded its limits.
        text: the error, or the outcome in words.
    """

    outcome: Literal["verified", "passed", "refused", "ended"]
    text: str


def try_load(bundle: Bundle) -> Trial:
    """Report how a first load of a bundle goes."""
    try:
        packed = find_packed(bundle, onnxruntime=onnxruntime_version())
        check_load(bundle, is_packed=packed is not None)
        is_new = first_load(bundle, packed=packed)
    except FirstLoadError as error:
        return Trial(outcome="ended", text=f"{error}")
    except OrtolanError as error:
        return Trial(outcome="refused", text=f"{error}")
    if is_new:
        return Trial(outcome="passed", text="passed: loaded and ran a step in a subprocess")
    return Trial(outcome="verified", text="made, loaded or verified here before, with these files")


def first_load(bundle: Bundle, *, device: str = "auto", packed: Packed | None = None) -> bool:
    """Load a bundle and run a step in a limited subprocess, unless that or `verify` passed here.

    The memory plan of the bundle bounds the address space, the size of its weights bounds the time,
    and no file can be written. Only Linux limits memory; Windows limits nothing but time. A bundle
    that runs on the CPU too is loaded there; on a GPU alone, only its time is limited.
    """
    if is_verified(bundle, onnxruntime=onnxruntime_version()):
        return False
    if starts_no_child() or not sys.executable:
        raise FirstLoadError(
            "A first load needs a Python interpreter to start, and this program has none. Pass "
            "isolate=False, or run `ortolan verify` on the bundle first."
        )
    seconds = _seconds(bundle)
    on_cpu = "cpu" in bundle.manifest.devices
    task = Task(
        folder=str(bundle.path),
        device="cpu" if on_cpu else device,
        packed=None if packed is None else packed.folder,
        memory=_memory(bundle, packed) if on_cpu else None,
        seconds=seconds,
    )
    status, answer, is_late = _run(task, seconds)
    if is_late or (status < 0 and _signal_name(status) == "SIGXCPU"):
        raise _failed(f"did not finish within {seconds} s")
    if status != 0:
        raise _failed(_end(status))
    _raise_answer(answer, task)
    return True


def pass_first_load(bundle: Bundle, *, device: str = "auto", packed: Packed | None = None) -> None:
    """Do a first load, and remember that it passed."""
    before = stamps(bundle.path)
    if first_load(bundle, device=device, packed=packed):
        remember(bundle, before, onnxruntime=onnxruntime_version())


def _memory(bundle: Bundle, packed: Packed | None) -> int:
    """Bytes of address space: everything mapped, plus what may be allocated and is available."""
    manifest = bundle.manifest
    context = min(CAPACITY_STEP, manifest.context_length)
    plan = plan_memory(manifest, bundle.graphs, context=context)
    allocated = plan.total - plan.weights + _widest_weight(bundle) + limits.FIRST_LOAD_BYTES
    # each may hold every weight once more
    allocated += plan.packed * len(ON_DEMAND & manifest.graphs.keys())
    available = available_memory()
    if available is not None:  # the states of a manifest are no reason to take more
        allocated = min(allocated, available + free_swap())
    return plan.weights + (0 if packed is None else packed.manifest.blob.size) + allocated


def _widest_weight(bundle: Bundle) -> int:
    """Bytes of the largest weight in float32, which a kernel may need for a moment."""
    tensors = (tensor for graph in bundle.graphs.values() for tensor in graph.external)
    return max((_TO_FLOAT32.get(tensor.dtype, 8) * tensor.length for tensor in tensors), default=0)


def _seconds(bundle: Bundle) -> int:
    sizes = {file.name: file.size for file in bundle.manifest.files}
    weights = sum(sizes[name] for name in bundle.manifest.weights)
    return limits.FIRST_LOAD_SECONDS + weights // limits.FIRST_LOAD_BYTES_PER_SECOND


def _run(task: Task, seconds: int) -> tuple[int, bytes, bool]:
    """Return the exit status, the answer, and whether time ran out."""
    late = threading.Event()
    with python_process(
        *_CHILD,
        msgspec.json.encode(task).decode(),
        stderr=subprocess.DEVNULL,
        environment={"OPENBLAS_NUM_THREADS": "1"},  # its unused threads cost address space
    ) as process:

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            with process.stdout or io.BytesIO() as stream:  # closed: a longer answer is SIGPIPE
                answer = stream.read(_ANSWER_BYTES)
            status = process.wait()
        finally:
            timer.cancel()
    return status, answer, late.is_set()


def _raise_answer(data: bytes, task: Task) -> None:
    try:
        answer = msgspec.json.decode(data, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _failed("did not answer") from None
    if answer.error is None:
        return
    if answer.error == MemoryError.__name__:
        if task.memory is None:
            raise _failed("ran out of memory")
        raise _failed(f"asked for more than {size(task.memory)} of memory")
    error = _ERRORS.get(answer.error)
    raise _failed(f"raised {answer.text}") if error is None else error(answer.text)


def _end(status: int) -> str:
    if status > 0:
        return f"exited with status {status}"
    name = _signal_name(status)
    hint = ", which the system sends when memory is short" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _signal_name(status: int) -> str:
    names = {number.value: number.name for number in signal.Signals}
    return names.get(-status, f"signal {-status}")


def _failed(problem: str) -> FirstLoadError:
    return FirstLoadError(f"The subprocess of a first load {problem}. {_ADVICE}")
