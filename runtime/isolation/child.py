"""What the process of a first load does: it limits itself, opens the bundle, and runs a step.

`ortolan.runtime.isolation.first_load` starts it and reads what it says. What is imported here is
in memory before the limits hold and before the bundle is looked at.
"""

import os
import sys
from pathlib import Path

import msgspec

from ortolan.errors import OrtolanError
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.packed import open_packed
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.ort_session import onnxruntime_version
from ortolan.runtime.engine.sample_outputs import sample_outputs
from ortolan.runtime.errors import FirstLoadError
from ortolan.runtime.isolation.first_load import Answer, Task
from ortolan.runtime.machine.control_groups import read_small

__all__ = ["main"]

_NO_MEMORY = ("bad_alloc", "bad allocation", "Failed to allocate memory", "Cannot allocate memory")
"""In what onnxruntime says of an allocation that was refused."""

_TEXT = 4096
"""Letters of an error: many times those of the longest."""

_GRACE_S = 5
"""Between the signal that ends the process, by which it is known why, and the one that must."""


def main() -> None:
    """Do the task of the command line, print the answer, and end."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what libraries print is no answer
    set_limits(memory=task.memory, seconds=task.seconds)
    os.write(answers, msgspec.json.encode(_answer(task)))
    os._exit(0)  # nothing is worth tidying up


def set_limits(*, memory: int, seconds: int) -> None:
    """Limit this process, as far as the system can: on Windows it cannot."""
    try:
        import resource
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    seconds = seconds if most == resource.RLIM_INFINITY else min(seconds, most)
    limits = {
        resource.RLIMIT_CPU: (seconds, seconds + _GRACE_S),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    pages = read_small(Path("/proc/self/statm")).split()
    if pages:  # Linux; other systems do not hold to this limit, or refuse it
        total = int(pages[0]) * resource.getpagesize() + memory
        limits[resource.RLIMIT_AS] = (total, total)
    for kind, (soft, hard) in limits.items():
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))


def first_step(task: Task) -> None:
    """Open a bundle with all its graphs, and run a step or two."""
    # its parent has asked whether it is trusted
    bundle, packed = open_bundle(task.folder, trust=True), None
    if task.packed is not None:
        packed = open_packed(bundle, task.packed, onnxruntime=onnxruntime_version())
    # One thread: the processor is limited for all of them, and each takes address space.
    engine = Engine(bundle, device=task.device, threads=1, packed=packed)
    sample_outputs(engine)
    engine.open_maps()


def _answer(task: Task) -> Answer:
    try:
        first_step(task)
    except OrtolanError as error:
        text = str(error)
        if any(words in text for words in _NO_MEMORY):
            return Answer(error=MemoryError.__name__)
        return Answer(error=type(error).__name__, text=text[:_TEXT])
    except MemoryError:
        return Answer(error=MemoryError.__name__)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Answer(error=FirstLoadError.__name__, text=text[:_TEXT])
    return Answer()


if __name__ == "__main__":
    main()
