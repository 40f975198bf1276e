"""A service used by tasks of an event loop."""

import asyncio
import gc
import random
from collections.abc import Callable, Iterator

import pytest
from tests.runtime.conftest import resident_bytes

from ortolan.runtime.decoder import Decoder
from ortolan.runtime.generation.completion import Completion
from ortolan.runtime.generation.grammar import Grammar
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.serving.service import Service
from ortolan.runtime.serving.ticket import Ticket

SLOTS = 8
WORD = Grammar.regex("[a-z]{2,9}")


@pytest.fixture
def service(model: Decoder) -> Iterator[Service]:
    with model.serve(slots=SLOTS, queue=1000, cache_bytes=1 << 18) as service:
        yield service


def test_a_wait_may_time_out_while_generation_continues(service: Service) -> None:
    async def main() -> None:
        ticket = service.submit("Hello", max_new_tokens=200, ignore_eos=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ticket, 0.001)
        assert len((await ticket).tokens) == 200

    asyncio.run(main())


def test_a_loop_that_is_closed_stops_nothing(service: Service) -> None:
    async def leave() -> None:
        ticket = service.submit("Hello", max_new_tokens=50, ignore_eos=True)
        asyncio.get_running_loop().create_task(wait(ticket))
        await asyncio.sleep(0)

    async def wait(ticket: Ticket[Completion]) -> None:
        # shields what it waits for from the end of the loop
        await asyncio.shield(asyncio.ensure_future(ticket))

    asyncio.run(leave())
    later = service.submit("Hello", max_new_tokens=60, ignore_eos=True)
    assert len(later.result().tokens) == 60


def test_tasks_are_woken_by_one_call_into_their_loop(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        call = loop.call_soon_threadsafe

        def counted(callback: Callable[..., object], *args: object) -> object:
            calls.append(args)
            return call(callback, *args)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        await asyncio.gather(*(read() for _ in range(SLOTS)))

    async def read() -> None:
        ticket = service.submit("Hello", max_new_tokens=40, ignore_eos=True)
        assert "".join([piece.content async for piece in ticket]) == (await ticket).text

    asyncio.run(main())
    # one call per prompt, then one per step for all of them
    assert len(calls) <= 2 * SLOTS + 45


async def converse(service: Service, seed: int) -> list[tuple[int, ...]]:
    """Turns of one conversation; a third of them are cancelled."""
    draw = random.Random(seed)
    text, answers = f"{seed} says ", []
    last = draw.randint(1, 3) if seed % 3 == 0 else None
    for turn in range(4):
        text += chr(draw.randint(97, 122)) * draw.randint(1, 90)
        ticket = service.submit(
            text,
            max_new_tokens=draw.randint(1, 12),
            sampling=Sampling(temperature=draw.choice([0.0, 1.0]), seed=seed),
            priority=draw.choice([0, 0, 0, 1]),
            grammar=draw.choice([None, None, WORD]),
        )
        if turn == last:
            async for _ in ticket:
                break
            ticket.cancel()
            await ticket
            break
        text += "".join([piece.content async for piece in ticket])
        answers.append((await ticket).tokens)
    return answers


async def all_of(service: Service, seeds: range) -> list[list[tuple[int, ...]]]:
    return await asyncio.gather(*(converse(service, seed) for seed in seeds))


def check_conversations(model: Decoder, service: Service, count: int) -> None:
    """Compare all answers with those of a separate service."""
    together = asyncio.run(all_of(service, range(count)))
    with model.serve(slots=2, cache_bytes=0) as own:
        for seed in range(count):
            assert asyncio.run(converse(own, seed)) == together[seed]
    stats = service.stats()
    assert (stats.running, stats.waiting) == (0, 0)


def test_conversations_do_not_affect_each_other(model: Decoder, service: Service) -> None:
    check_conversations(model, service, 24)


@pytest.mark.slow
def test_two_hundred_conversations_leave_no_memory_behind(model: Decoder, service: Service) -> None:
    check_conversations(model, service, 200)
    gc.collect()
    before = resident_bytes()
    for _ in range(3):
        asyncio.run(all_of(service, range(200)))
    gc.collect()
    grown = resident_bytes() - before
    print(f"resident memory grew by {grown / 1e6:.1f} MB; {service.stats()}")
    assert grown <= 10_000_000
