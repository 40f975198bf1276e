"""A model whose calls fail, all or one in fifty: answers, `/ready` and metrics."""

import logging
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
from tests.server.live import LiveServer, live_server, serving_fp32, stats, wait_until

from ortolan.server import Settings
from ortolan.server import models as server_models
from ortolan.server.models import Models

PATH = "/v1/completions"
BODY = {"model": "fp32", "prompt": "Hi", "max_tokens": 3, "ignore_eos": True}


def ask(client: httpx2.Client) -> httpx2.Response:
    return client.post(PATH, json=BODY)


def metric(client: httpx2.Client, name: str) -> list[str]:
    lines = client.get("/metrics").text.splitlines()
    return [line.split("}")[1].strip() for line in lines if line.startswith(f"ortolan_{name}{{")]


def test_a_call_that_fails_once_is_repeated(server: LiveServer, client: httpx2.Client) -> None:
    before, failed_calls = ask(client), int(*metric(client, "failed_calls_total"))
    with failing(lambda call: call == 1):
        answer = ask(client)
    assert answer.json()["choices"] == before.json()["choices"]
    assert client.get("/ready").status_code == 200
    assert metric(client, "failed_calls_total") == [f"{failed_calls + 1}"]
    assert metric(client, "requests_failed_total") == []


@pytest.mark.parametrize("asks", [True, False], ids=["by-a-request", "by-ready"])
def test_a_model_that_fails_is_not_ready_and_loaded_again(
    server: LiveServer, client: httpx2.Client, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    monkeypatch.setattr(server_models, "RELOAD_PAUSE_S", 0.0)
    before, old = ask(client).json()["choices"], server.models.loaded[0]
    with failing(lambda call: True):
        for _ in range(2):
            answer = ask(client)
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "compute"
        monkeypatch.setattr(Models, "_may_reload", lambda self, name, users: False)
        answer = client.get("/ready")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "failing"
        assert metric(client, "failing") == ["1"]
        assert metric(client, "requests_failed_total") == ["2"]
        assert metric(client, "requests_refused_total") == []
    monkeypatch.undo()
    monkeypatch.setattr(server_models, "RELOAD_PAUSE_S", 0.0)
    if asks:
        assert ask(client).json()["choices"] == before
    wait_until(lambda: client.get("/ready").status_code == 200)
    assert server.models.loaded[0] is not old
    assert ask(client).json()["choices"] == before
    assert stats(server).failed == {}


def test_a_model_that_goes_on_failing_is_loaded_again_only_now_and_then(
    bundles: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        serving_fp32(bundles) as server,
        caplog.at_level(logging.INFO, "ortolan.server"),
        failing(lambda call: True),
    ):
        assert {server.call("POST", PATH, json=BODY).status_code for _ in range(8)} == {500}
    said = [record.getMessage() for record in caplog.records]
    assert said.count("fp32 fails, and is loaded again") == 1


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
