"""Many questions at once with the openai package; it waits and retries when the queue is full."""

import asyncio
import sys

from openai import AsyncOpenAI


async def main() -> None:
    """Ask twenty questions at once."""
    client = AsyncOpenAI(max_retries=20)

    async def answer(number: int) -> str:
        completion = await client.chat.completions.create(
            model=sys.argv[1],
            messages=[{"role": "user", "content": f"What comes after {number}?"}],
            max_tokens=16,
        )
        return completion.choices[0].message.content

    answers = await asyncio.gather(*(answer(number) for number in range(20)))
    print("answers:", len(answers))


asyncio.run(main())
