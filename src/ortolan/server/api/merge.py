"""Merges the pieces of several tickets in the order in which they come."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def merged(sources: Sequence[AsyncIterator[T]]) -> AsyncIterator[tuple[int, T]]:
    """Yield every item with the index of its source."""
    if len(sources) == 1:
        async for item in sources[0]:
            yield 0, item
        return
    waiting = {_next(source): index for index, source in enumerate(sources)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                index = waiting.pop(future)
                items = future.result()
                for item in items:
                    yield index, item
                if items:
                    waiting[_next(sources[index])] = index
    finally:
        for future in waiting:
            future.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _next(source: AsyncIterator[T]) -> "asyncio.Task[list[T]]":
    """The next item of a source in a list, which is empty at the end."""

    async def next_items() -> list[T]:
        async for item in source:
            return [item]
        return []

    return asyncio.ensure_future(next_items())
