"""Requests of several parts at a full queue."""

import pytest

from ortolan.runtime import QueueFullError
from ortolan.runtime.serving.base_service import patiently


def test_a_full_queue_refuses_the_first_part_and_delays_the_others() -> None:
    places = [False, True, False, False, True]

    def submit(part: str) -> str:
        if not places.pop(0):
            raise QueueFullError("The queue is full.", retry_after_s=0.001)
        return part

    with pytest.raises(QueueFullError):
        patiently(submit)("first")
    submit_part = patiently(submit)
    assert [submit_part("first"), submit_part("second")] == ["first", "second"]
    assert places == []
