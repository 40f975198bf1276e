"""Bundles in several processes of Ray. Needs `ortolan[ray]`; Ray takes a minute to start."""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from ortolan.runtime import Decoder, Sampling
from ortolan.server import Settings

ray = pytest.importorskip("ray", reason="needs ortolan[ray]")
pytest.importorskip("ray.serve", reason="needs ortolan[ray]")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of Ray
]

PROMPT = {"prompt": "one two three", "max_tokens": 100, "ignore_eos": True}
SAMPLED = {**PROMPT, "temperature": 1.0, "seed": 7, "n": 8}
LONG = {**SAMPLED, "n": 64, "max_tokens": 150}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, configure_logging=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def client(cluster: None, bundles: dict[str, Path]) -> Iterator[httpx2.Client]:
    from ray import serve

    from ortolan.ray import deployment

    serve.start(http_options={"host": "127.0.0.1", "port": 8197})
    settings = Settings(bundles={"fp32": bundles["fp32"]}, serve={"slots": 2, "queue": 200})
    serve.run(deployment(settings, replicas=2))
    with httpx2.Client(base_url="http://127.0.0.1:8197", timeout=180, trust_env=False) as client:
        yield client
    serve.shutdown()


def texts(response: httpx2.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [choice["text"] for choice in response.json()["choices"]]


def kill_replicas() -> None:
    """Kill every replica, as if its machine had failed; Ray starts others."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if "#replica#" in actor["name"]:
            ray.kill(ray.get_actor(actor["name"], namespace=actor["namespace"]), no_restart=True)


def running(client: httpx2.Client) -> int:
    """Requests that hold a slot in one of the replicas."""
    lines = client.get("/metrics").text.splitlines()
    (line,) = [line for line in lines if line.startswith("ortolan_requests_running{")]
    return int(line.rpartition(" ")[2])


def test_texts_are_those_of_a_single_process(
    client: httpx2.Client, models: dict[str, Decoder]
) -> None:
    options: Any = {"max_new_tokens": PROMPT["max_tokens"], "ignore_eos": True}
    with models["fp32"].serve(slots=2) as service:
        tickets = [
            service.submit("one two three", sampling=Sampling(temperature=1, seed=seed), **options)
            for seed in range(7, 15)
        ]
        expected = [ticket.result().text for ticket in tickets]
    with ThreadPoolExecutor(6) as pool:
        for response in pool.map(lambda _: client.post("/v1/completions", json=SAMPLED), range(6)):
            assert texts(response) == expected


def test_streams_and_errors_are_those_of_the_server(client: httpx2.Client) -> None:
    with client.stream("POST", "/v1/completions", json={**SAMPLED, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert len(lines) > 10
    response = client.post("/v1/completions", json={"prompt": "a", "no_such": 1})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "no_such"
    assert client.post("/v1/completions", content=b"x" * (5 << 20)).status_code in (413, 415)
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/v1/models").json()["data"][0]["id"] == "fp32"
    assert client.get("/no/such/path").status_code == 404


def test_a_client_that_leaves_frees_its_slots(client: httpx2.Client) -> None:
    with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
        next(response.iter_lines())
    until = time.monotonic() + 30
    idle = 0
    while idle < 12:  # a call asks either of the two
        idle = 0 if running(client) else idle + 1
        assert time.monotonic() < until


def test_a_request_whose_replica_dies_is_computed_by_another(client: httpx2.Client) -> None:
    expected = texts(client.post("/v1/completions", json=LONG))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, "/v1/completions", json=LONG)
        while not running(client):
            time.sleep(0.01)
        kill_replicas()
        assert texts(answer.result(180)) == expected


def test_a_stream_whose_replica_dies_ends_with_an_error(client: httpx2.Client) -> None:
    with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        kill_replicas()
        last = [line for line in lines if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "died"
    assert len(texts(client.post("/v1/completions", json=SAMPLED))) == 8


def test_a_dataset_gets_the_texts_of_generate(
    cluster: None, bundles: dict[str, Path], models: dict[str, Decoder]
) -> None:
    import ray.data

    from ortolan.ray import Generate

    prompts = [f"prompt {number}" for number in range(40)]
    dataset = ray.data.from_items([{"prompt": prompt} for prompt in prompts]).map_batches(
        Generate,
        fn_constructor_args=[str(bundles["fp32"])],
        fn_constructor_kwargs={"max_new_tokens": 20},
        batch_size=8,
        concurrency=2,
    )
    got = {row["prompt"]: row["completion"] for row in dataset.take_all()}
    expected = models["fp32"].generate(prompts, max_new_tokens=20)
    assert got == {p: c.text for p, c in zip(prompts, expected, strict=True)}


@dataclass(frozen=True)
class FakeReplica:
    replica_id: str


def ranking(body: Any, names: str) -> str:
    from ortolan.ray import PrefixRouter

    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = SimpleNamespace(args=({}, data), routing_context=SimpleNamespace())
    replicas = [FakeReplica(name) for name in names]
    router = object.__new__(PrefixRouter)
    ranked = asyncio.run(router.choose_replicas(replicas, request))
    return "".join(replica.replica_id for (replica,) in ranked)


def test_prompts_that_begin_alike_go_to_one_replica() -> None:
    system = {"role": "system", "content": "Be brief. " * 80}
    bodies = [{"messages": [system, {"role": "user", "content": str(n)}]} for n in range(20)]
    ranked = {ranking(body, "abcdef") for body in bodies}
    assert len(ranked) == 1
    (order,) = ranked
    assert ranking(bodies[0], "fedcba") == order
    # without one of them, the others keep their order: only its prompts move
    assert ranking(bodies[0], order[1:]) == order[1:]
    other = [{"messages": [{"role": "user", "content": f"{n} {n}"}]} for n in range(60)]
    assert {(ranking(body, "abcdef"))[0] for body in other} == set("abcdef")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff"])
def test_requests_without_a_prompt_go_anywhere(body: bytes) -> None:
    assert {(ranking(body, "ab"))[0] for _ in range(40)} == {"a", "b"}
