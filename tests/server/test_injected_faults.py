"""A server of which one call of the model in fifty fails, under 2,000 mixed requests."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.runtime.serving.faults import failing
from tests.server.live import LiveServer, live_server, stats

from ortolan.runtime.serving.service import ServeOptions
from ortolan.server import Settings

REQUESTS = 2000
EVERY = 50
TYPED = {"compute", "service", "queue-full"}


def bodies(seed: int) -> list[dict[str, Any]]:
    """Prompts of several lengths and shared beginnings, greedy and sampled, some streamed."""
    choose = random.Random(seed)
    shared = ["abc def " * 40, "Hello. " * 25, ""]
    made = []
    for number in range(60):
        made.append(
            {
                "model": "int4",
                "prompt": choose.choice(shared) + "xyz"[number % 3] * choose.randint(1, 60),
                "max_tokens": choose.choice([1, 4, 9, 30]),
                "temperature": number % 2,
                "seed": number,
                "ignore_eos": True,
                "logprobs": 0,
            }
        )
    return made


async def ask(client: httpx2.AsyncClient, body: dict[str, Any]) -> tuple[str, Any]:
    """The kind of an answer, and its text with log-probabilities or its error."""
    if not body.get("stream"):
        answer = await client.post("/v1/completions", json=body)
        data = answer.json()
        if answer.status_code != 200:
            return "error", data["error"]["code"]
        (choice,) = data["choices"]
        return "whole", (choice["text"], choice["logprobs"]["token_logprobs"])
    text, logprobs = "", list[float]()
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            return "error", json.loads(await answer.aread())["error"]["code"]
        async for line in answer.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                return "stream", (text, logprobs)
            data = json.loads(line.removeprefix("data: "))
            if "error" in data:
                return "error", data["error"]["code"]
            (choice,) = data["choices"]
            text += choice["text"]
            if choice["logprobs"] is not None:
                logprobs += choice["logprobs"]["token_logprobs"]
    return "lost", text


async def cancelled(client: httpx2.AsyncClient, body: dict[str, Any], after: int) -> None:
    """Leave after some events."""
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        async for line in answer.aiter_lines():
            after -= line.startswith("data: ")
            if after < 0:
                return


async def storm(server: LiveServer, expected: list[Any]) -> tuple[Counter[str], list[str]]:
    choose, made = random.Random(7), bodies(3)
    limits = httpx2.Limits(max_connections=40)
    outcomes, wrong, has_ended = Counter[str](), list[str](), asyncio.Event()
    waiting = iter(range(REQUESTS))
    async with httpx2.AsyncClient(
        base_url=server.url, timeout=120, limits=limits, trust_env=False
    ) as client:

        async def work() -> None:
            for number in waiting:
                index = choose.randrange(len(made))
                body = {**made[index], "stream": number % 3 == 0}
                if number % 20 == 0:
                    await cancelled(client, body, choose.randint(0, 5))
                    outcomes["cancelled"] += 1
                    continue
                kind, value = await ask(client, body)
                outcomes[f"error {value}" if kind == "error" else kind] += 1
                is_right = value in TYPED if kind == "error" else value == expected[index]
                if not is_right:
                    wrong.append(f"{number}: {kind} {value!r:.200}")

        async def watch() -> None:
            while not has_ended.is_set():
                ready = await client.get("/ready")
                outcomes[f"ready {ready.status_code}"] += 1
                await asyncio.sleep(0.02)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(work() for _ in range(24)))
        has_ended.set()
        await watching
    return outcomes, wrong


@pytest.mark.slow
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_every_request_is_right_or_a_typed_error(
    bundles: dict[str, Path], cache_bytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    options: ServeOptions = {"slots": 6, "queue": 64, "cache_bytes": cache_bytes}
    settings = Settings(bundles={"int4": bundles["int4"]}, load={"threads": 1}, serve=options)
    with live_server(settings) as server:

        async def alone() -> list[Any]:
            async with httpx2.AsyncClient(
                base_url=server.url, timeout=60, trust_env=False
            ) as client:
                return [(await ask(client, body))[1] for body in bodies(3)]

        expected = asyncio.run(alone())
        chance = random.Random(11)
        with failing(lambda _: chance.randrange(EVERY) == 0) as calls:
            outcomes, wrong = asyncio.run(storm(server, expected))
            failed = stats(server).failed_calls
            with capsys.disabled():
                print(f"\n{calls()} calls, {failed} failed; {dict(outcomes)}")
        assert wrong == []
        assert outcomes["whole"] + outcomes["stream"] > 0.99 * (REQUESTS - outcomes["cancelled"])
        assert outcomes["ready 200"] > 10
        assert set(outcomes) <= {"whole", "stream", "cancelled", "ready 200"} | {
            f"error {code}" for code in TYPED
        }
        assert failed > calls() / EVERY / 2
        assert asyncio.run(alone()) == expected
