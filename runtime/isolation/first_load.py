"""The first load of a bundle, in a process of its own.

A graph that passes every check may still end the process that loads it, or never come to an end: a
kernel is code. So a process that has nothing to lose goes first. It is started anew, never forked,
and limited in memory, time and files (`ortolan.runtime.isolation.child`). It is no sandbox: code
that a kernel was tricked into would have the rights of the user.
"""

import io
import os
import signal
import subprocess
import sys
import threading

import msgspec

from ortolan.errors import OrtolanError
from ortolan.runtime import errors, limits
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.kinds import MAPS_ROLE
from ortolan.runtime.bundle.packed import Packed
from ortolan.runtime.engine.memory_plan import plan_memory, size
from ortolan.runtime.engine.ort_session import onnxruntime_version
from ortolan.runtime.engine.slots import CAPACITY_STEP
from ortolan.runtime.errors import FirstLoadError
from ortolan.runtime.isolation.verified import is_verified
from ortolan.runtime.machine.memory import available_memory, free_swap

__all__ = ["Answer", "Task", "first_load"]

_CHILD = ("-m", "ortolan.runtime.isolation.child")

_KNOWN = {
    error.__name__: error
    for error in vars(errors).values()
    if isinstance(error, type)
    and issubclass(error, OrtolanError)
    and not issubclass(error, FirstLoadError | errors.ServiceError)
}
"""Errors that are the same here as there."""

_TO_FLOAT32 = {"float32": 1, "float16": 2, "bfloat16": 2}
"""Times a weight grows in float32; others may hold 4 bits, eight times smaller."""

_ANSWER_BYTES = 1 << 16
"""Most that is read of an answer: the process that gives it may be out of its mind."""

_ADVICE = (
    "Do not load it: it would do the same to this process. Get it again from whoever made it; if "
    "you trust them and this machine is merely small or slow, go on with isolate=False "
    "(--no-isolate)."
)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, and within what.

    Attributes:
        folder: of the bundle.
        device: as for `ortolan.load`.
        packed: name of the packed folder to use, if any.
        memory: bytes of address space beyond what the process has when it begins.
        seconds: of the processor.
    """

    folder: str
    device: str
    packed: str | None
    memory: int
    seconds: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How it went: nothing where all went well, or the class of an error and its text."""

    error: str | None = None
    text: str = ""


def first_load(bundle: Bundle, *, device: str = "auto", packed: Packed | None = None) -> bool:
    """Open a bundle and run a step of it in a process of its own, unless it was verified here.

    The address space of that process is limited by the bundle's memory plan, what it computes and
    how long it takes by the size of its weights; it can write no file. Elsewhere than on Linux
    memory is not limited, and on Windows the time alone is.

    Args:
        bundle: opened and checked.
        device: as for `ortolan.load`.
        packed: weights to load it with.

    Returns:
        Whether there was need for a process.

    Raises:
        FirstLoadError: the process was ended, or asked for more than it may.
        OrtolanError: whatever opening the bundle and running a step raise.
    """
    if is_verified(bundle, onnxruntime=onnxruntime_version()):
        return False
    if getattr(sys, "frozen", False) or not sys.executable:
        raise FirstLoadError(
            "first load: expected a Python to start in a process of its own, got a program that "
            "has none. Go on with isolate=False, or verify the bundle by `ortolan verify` first."
        )
    seconds = _seconds(bundle)
    task = Task(
        folder=str(bundle.path),
        device=device,
        packed=None if packed is None else packed.folder,
        memory=_memory(bundle, 0 if packed is None else packed.manifest.blob.size),
        seconds=seconds,
    )
    status, said, is_late = _run(task, seconds)
    if is_late or (status < 0 and _name(status) == "SIGXCPU"):
        raise _refused(f"no end of it within {seconds} s")
    if status != 0:
        raise _refused(_end(status))
    _raise_answer(said, task)
    return True


def _memory(bundle: Bundle, packed: int) -> int:
    """Bytes of address space: what is mapped, and what may be in memory and is there."""
    manifest = bundle.manifest
    context = min(CAPACITY_STEP, manifest.context_length)
    plan = plan_memory(manifest, bundle.graphs, context=context)
    held = plan.total - plan.weights + _widest(bundle) + limits.FIRST_LOAD_BYTES
    if MAPS_ROLE in manifest.graphs:  # may hold each weight once more
        held += plan.packed
    left = available_memory()
    # What a manifest says of its states is no reason to take more than there is.
    return plan.weights + packed + (held if left is None else min(held, left + free_swap()))


def _widest(bundle: Bundle) -> int:
    """Bytes of the largest weight in float32, as which a kernel may need it for a moment."""
    tensors = (tensor for graph in bundle.graphs.values() for tensor in graph.external)
    return max((_TO_FLOAT32.get(each.dtype, 8) * each.length for each in tensors), default=0)


def _seconds(bundle: Bundle) -> int:
    sizes = {file.name: file.size for file in bundle.manifest.files}
    weights = sum(sizes[name] for name in bundle.manifest.weights)
    return limits.FIRST_LOAD_SECONDS + weights // limits.FIRST_LOAD_BYTES_PER_SECOND


def _run(task: Task, seconds: int) -> tuple[int, bytes, bool]:
    """Give the exit status, what was said, and whether the time was over."""
    late = threading.Event()
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    with subprocess.Popen(
        # -P: the working directory is no place to import from
        [sys.executable, "-P", *_CHILD, msgspec.json.encode(task).decode()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # threads of linear algebra that is not used here would take address space
        env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
    ) as process:

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            with process.stdout or io.BytesIO() as stream:  # closed then: more would fill the pipe
                said = stream.read(_ANSWER_BYTES)
            status = process.wait()
        finally:
            timer.cancel()
            process.kill()  # on Ctrl-C, say; of no effect when it has ended
    return status, said, late.is_set()


def _raise_answer(said: bytes, task: Task) -> None:
    try:
        answer = msgspec.json.decode(said, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _refused("no answer from it") from None
    if answer.error is None:
        return
    if answer.error == MemoryError.__name__:
        raise _refused(f"a demand for more than {size(task.memory)} of memory")
    error = _KNOWN.get(answer.error)
    raise _refused(answer.text) if error is None else error(answer.text)


def _end(status: int) -> str:
    """How a process ended that did not mean to."""
    if status > 0:
        return f"its end with exit status {status}"
    name = _name(status)
    hint = ", as the system sends where memory is short" if name == "SIGKILL" else ""
    return f"its end by {name}{hint}"


def _name(status: int) -> str:
    """Of the signal that ended a process."""
    known = {each.value: each.name for each in signal.Signals}
    return known.get(-status, f"signal {-status}")


def _refused(got: str) -> FirstLoadError:
    return FirstLoadError(
        "first load: expected a process of its own to open the bundle and to run a step, got "
        f"{got}. {_ADVICE}"
    )
