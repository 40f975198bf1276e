"""A server of which one call of the model in fifty fails, under many mixed requests."""

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.runtime.serving.faults import failing
from tests.server.calls import post_stream
from tests.server.live import live_server, stats

from ortolan.server import Settings

PATH = "/v1/completions"
REQUESTS = 800
EVERY = 50
TYPED = {"compute", "service", "queue-full"}


def bodies(seed: int) -> list[dict[str, Any]]:
    """Prompts of several lengths and shared beginnings, greedy and sampled."""
    choose = random.Random(seed)
    shared = ["abc def " * 40, "Hello. " * 25, ""]
    return [
        {
            "model": "int4",
            "prompt": choose.choice(shared) + "xyz"[number % 3] * choose.randint(1, 60),
            "max_tokens": choose.choice([1, 4, 9, 30]),
            "temperature": number % 2,
            "seed": number,
            "ignore_eos": True,
            "logprobs": 0,
        }
        for number in range(60)
    ]


def whole(client: httpx2.Client, body: dict[str, Any]) -> Any:
    """Text and log-probabilities, or the code of an error."""
    data = client.post(PATH, json=body).json()
    if "error" in data:
        return data["error"]["code"]
    (choice,) = data["choices"]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def streamed(client: httpx2.Client, body: dict[str, Any]) -> Any:
    """The same of a stream."""
    text, logprobs = "", list[float]()
    *events, last = post_stream(client, PATH, body)
    for event in events:
        if "error" in event:
            return event["error"]["code"]
        text += event["choices"][0]["text"]
        logprobs += (event["choices"][0]["logprobs"] or {}).get("token_logprobs", [])
    return (text, logprobs) if last == "[DONE]" else last["error"]["code"]


def cancelled(client: httpx2.Client, body: dict[str, Any]) -> None:
    """Leave a stream after its first bytes."""
    with client.stream("POST", PATH, json={**body, "stream": True}) as answer:
        next(answer.iter_bytes(), None)


@pytest.mark.slow
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_every_request_is_right_or_a_typed_error(
    bundles: dict[str, Path], cache_bytes: int
) -> None:
    settings = Settings(
        bundles={"int4": bundles["int4"]},
        load={"threads": 1},
        serve={"slots": 6, "queue": 64, "cache_bytes": cache_bytes},
    )
    made, chance, has_ended = bodies(3), random.Random(11), threading.Event()
    outcomes: Counter[Any] = Counter()
    with live_server(settings) as server, server.client() as client:

        def work(number: int) -> None:
            body = made[number * 7 % len(made)]
            if number % 20 == 0:
                cancelled(client, body)
                return
            found = (streamed if number % 3 == 0 else whole)(client, body)
            outcomes["right" if found == expected[number * 7 % len(made)] else found] += 1

        def watch() -> None:
            while not has_ended.is_set():
                assert client.get("/ready").status_code == 200
                time.sleep(0.02)

        expected = [whole(client, body) for body in made]
        with (
            failing(lambda _: chance.randrange(EVERY) == 0) as calls,
            ThreadPoolExecutor(24) as threads,
        ):
            watching = threads.submit(watch)
            list(threads.map(work, range(REQUESTS)))
            has_ended.set()
            watching.result()
            assert stats(server).failed_calls > calls() / EVERY / 2
        assert outcomes["right"] > 0.99 * outcomes.total()
        assert set(outcomes) <= {"right", *TYPED}
        assert [whole(client, body) for body in made] == expected
