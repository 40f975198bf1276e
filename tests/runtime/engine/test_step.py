from types import SimpleNamespace
from typing import Any

from ortolan.runtime.engine.step import _call


def test_a_binding_is_run_whatever_onnxruntime_calls_its_parts() -> None:
    ran: list[Any] = []
    parts = SimpleNamespace(run_with_iobinding=lambda *given: ran.append(given))
    _call(SimpleNamespace(_sess=parts), SimpleNamespace(_iobinding="bound"))()
    other = SimpleNamespace(run_with_iobinding=lambda *given: ran.append(given))
    _call(other, "binding")()
    assert ran == [("bound", None), ("binding",)]
