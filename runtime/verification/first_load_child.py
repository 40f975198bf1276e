"""The subprocess of a first load: limits itself, opens the bundle and runs a step.

Started by `first_load`. The imports below are in memory before the limits hold and before the
bundle is read.
"""

import os
import sys
from pathlib import Path

import msgspec

from ortolan.errors import OrtolanError
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.packed import open_packed
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.providers import onnxruntime_version
from ortolan.runtime.engine.sample_outputs import sample_outputs
from ortolan.runtime.errors import FirstLoadError
from ortolan.runtime.machine.control_groups import read_small
from ortolan.runtime.verification.first_load import Answer, Task

_NO_MEMORY = ("bad_alloc", "bad allocation", "Failed to allocate memory", "Cannot allocate memory")
"""Parts of onnxruntime's messages about a failed allocation."""

_TEXT = 4096
"""Characters of an error message, many times the longest."""

_GRACE_S = 5
"""Seconds from SIGXCPU, which tells the parent the reason, to the SIGKILL that cannot be caught."""


def main() -> None:
    """Do the task on the command line, print the answer and exit."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # output of libraries is not an answer
    set_limits(memory=task.memory, seconds=task.seconds)
    os.write(answers, msgspec.json.encode(_answer(task)))
    os._exit(0)  # skip all cleanup


def set_limits(*, memory: int | None, seconds: int) -> None:
    """Limit this process. Windows has no such limits."""
    try:
        import resource
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    seconds = seconds if most == resource.RLIM_INFINITY else min(seconds, most)
    limits = {
        resource.RLIMIT_CPU: (seconds, seconds + _GRACE_S),
        resource.RLIMIT_CORE: (0, 0),
    }
    if memory is not None:
        limits[resource.RLIMIT_FSIZE] = (0, 0)
    pages = read_small(Path("/proc/self/statm")).split()
    if memory is not None and pages:  # Linux only: others ignore or reject RLIMIT_AS
        total = int(pages[0]) * resource.getpagesize() + memory
        limits[resource.RLIMIT_AS] = (total, total)
    for kind, (soft, hard) in limits.items():
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))


def first_step(task: Task) -> None:
    """Open a bundle with all its graphs and run a step or two."""
    bundle, packed = open_bundle(task.folder), None
    if task.packed is not None:
        packed = open_packed(bundle, task.packed, onnxruntime=onnxruntime_version())
    # One thread: the time limit covers all threads, and each costs address space.
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
