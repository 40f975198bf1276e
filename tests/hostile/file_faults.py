"""Makes one file operation fail, be interrupted or cut short, or kills the process there.

A fork does the work, and is really killed or reports back. Operations are all calls that change the
disk: those of `os`, and the exchange of two folders.
"""

import errno
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ortolan import staging
from ortolan.errors import OrtolanError

Fault = Literal["ENOSPC", "EIO", "EINTR", "short", "SIGKILL"]

FAULTS: tuple[Fault, ...] = ("ENOSPC", "EIO", "EINTR", "short", "SIGKILL")

_CALLS = ("write", "fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "ftruncate", "link")

_MAKING = ("open", "write", "mkdir")
"""Operations that keep failing on a full disk."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the work of a fork ended.

    Attributes:
        operations: number reached.
        met: whether the fault happened.
        error: class name of the error; empty after success.
        message: of that error.
        is_typed: whether it is an `OrtolanError`.
        past: files that Python opened for writing without a counted operation.
    """

    operations: int = 0
    met: bool = False
    error: str = ""
    message: str = ""
    is_typed: bool = False
    past: Sequence[str] = ()


class Fork:
    """A process that does some work, in which one file operation may fail."""

    def __init__(self, work: Callable[[], object], *, fault: Fault = "EIO", at: int = 0) -> None:
        """Start the work.

        Args:
            work: function to call.
            fault: kind of fault.
            at: number of the operation, from 1; 0 for none.
        """
        self._at = at
        self._report, written = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads
            self._child = os.fork()
        if self._child == 0:
            os.setpgid(0, 0)
            os.close(self._report)
            _work(work, fault, at, written)
        os.close(written)

    def kill(self) -> None:
        os.kill(self._child, signal.SIGKILL)

    def outcome(self) -> Outcome:
        with os.fdopen(self._report, "rb") as stream:
            report = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
        if status == -signal.SIGKILL:
            return Outcome(operations=self._at, met=True, error="SIGKILL")
        assert status == 0, f"the fork ended with {status}"
        return Outcome(**json.loads(report))


def _work(work: Callable[[], object], fault: Fault, at: int, report: int) -> None:
    """Never return, since cleanup of the tests belongs to the parent."""
    status = 1
    try:
        if torch := sys.modules.get("torch"):
            # GNU OpenMP would wait for threads of the parent, which a fork does not have
            torch.set_num_threads(1)
        operations = _Operations(fault, at)
        error: BaseException | None = None
        write, past = os.write, _watch_opens()
        operations.install()
        try:
            work()
        except Exception as raised:
            error = raised
        outcome = Outcome(
            operations=operations.count,
            met=operations.met,
            error="" if error is None else type(error).__name__,
            message=f"{error or ''}",
            is_typed=isinstance(error, OrtolanError),
            past=past,
        )
        write(report, json.dumps(asdict(outcome)).encode())
        status = 0
    finally:
        os._exit(status)


def _watch_opens() -> list[str]:
    """Return a list that collects all paths opened for writing by `open`."""
    seen: list[str] = []

    def watch(event: str, args: tuple[object, ...]) -> None:
        if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wxa+"):
            seen.append(os.fsdecode(args[0]) if isinstance(args[0], str | bytes) else "")

    sys.addaudithook(watch)
    return seen


class _Operations:
    """Counts operations and makes one fail."""

    def __init__(self, fault: Fault, at: int) -> None:
        self.count = 0
        self.met = False
        self._fault = fault
        self._at = at
        self._written: set[int] = set()  # descriptors

    def install(self) -> None:
        for name in _CALLS:
            setattr(os, name, self._faulty(name, getattr(os, name)))
        setattr(os, "open", self._faulty("open", os.open))  # noqa: B010 - as above
        setattr(staging, "exchange", self._faulty("exchange", staging.exchange))  # noqa: B010

    def _faulty(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return function(*args, **kwargs)
            if name == "write" and args[0] not in self._written:
                return function(*args, **kwargs)
            self.count += 1
            if self._is_due(name):
                self.met = True
                if name == "write" and self._fault != "EINTR":  # nothing is written then
                    half = memoryview(args[1])[: max(1, len(args[1]) // 2)]
                    size = function(args[0], half)
                    if self._fault == "short":
                        return size
                self._fail()
            done = function(*args, **kwargs)
            if name == "open":
                self._written.add(done)
            return done

        return call

    def _is_due(self, name: str) -> bool:
        if self._fault == "short":
            return self.count == self._at and name == "write"
        if self._fault == "ENOSPC" and 0 < self._at < self.count:
            return self.met and name in _MAKING
        return self.count == self._at

    def _fail(self) -> None:
        if self._fault == "SIGKILL":
            os.killpg(0, signal.SIGKILL)
        code = getattr(errno, self._fault)
        raise OSError(code, os.strerror(code))
