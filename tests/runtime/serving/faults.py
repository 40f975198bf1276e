"""Lets calls of onnxruntime fail."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

import onnxruntime  # type: ignore[import-untyped]
from onnxruntime.capi.onnxruntime_pybind11_state import (  # type: ignore[import-untyped]
    Fail,
    RuntimeException,
)

__all__ = ["ERRORS", "failing"]

ERRORS: tuple[Callable[[], Exception], ...] = (
    lambda: RuntimeException("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Allocation failed"),
    MemoryError,
    lambda: OSError(5, "Input/output error"),
    lambda: Fail("[ONNXRuntimeError] : 1 : FAIL : bad kernel"),
    lambda: KeyError("a bug"),
)


@contextmanager
def failing(fails: Callable[[int], bool]) -> Iterator[Callable[[], int]]:
    """Let the calls fail whose numbers `fails` chooses; yield a function that counts all calls."""
    calls, failed = count(), count()
    begun = [0]

    def may_fail(method: Any) -> Any:
        def run(session: Any, *args: Any) -> Any:
            number = begun[0] = next(calls)
            if fails(number):
                raise ERRORS[next(failed) % len(ERRORS)]()
            return method(session, *args)

        return run

    session = onnxruntime.InferenceSession
    with (
        patch.object(session, "run", may_fail(session.run)),
        patch.object(session, "run_with_iobinding", may_fail(session.run_with_iobinding)),
    ):
        yield lambda: begun[0] + 1
