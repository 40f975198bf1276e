"""A call keeps its model loaded, and ends its tickets."""

import asyncio
import threading
from pathlib import Path

import pytest

from ortolan.runtime.errors import MemoryPlanError
from ortolan.server.call import Call
from ortolan.server.models import Models
from ortolan.server.store import Store


class Recorder:
    """A ticket."""

    is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


@pytest.fixture
def both(bundles: dict[str, Path]) -> Models:
    return Models(
        bundles,
        adapters={},
        load_options={"threads": 1},
        serve_options={"slots": 2},
        shutdown_timeout_s=1,
    )


def test_tickets_that_come_after_the_client_has_gone_are_cancelled(both: Models) -> None:
    ticket, is_open = Recorder(), threading.Event()

    def submit() -> list[Recorder]:
        is_open.wait(60)
        return [ticket]

    async def run() -> None:
        async with Call(path={}, models=both, store=Store(max_entries=1, max_bytes=1)) as call:
            task = asyncio.ensure_future(call.submit(submit))
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.sleep(0.05)
            is_open.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ticket.is_cancelled

    asyncio.run(run())


def test_short_memory_drops_only_models_that_no_call_uses(both: Models) -> None:
    tries: list[int] = []

    def submit() -> list[Recorder]:
        tries.append(len(both.loaded))
        if len(both.loaded) > 1:
            raise MemoryPlanError("no room")
        return [Recorder()]

    async def run() -> None:
        async with both.use("int4"):
            pass
        async with Call(path={}, models=both, store=Store(max_entries=1, max_bytes=1)) as call:
            await call.model("fp32")
            await call.submit(submit)
            assert [served.name for served in both.loaded] == ["fp32"]
            assert not await both.drop_unused()
        await both.close()

    asyncio.run(run())
    assert tries == [2, 1]
