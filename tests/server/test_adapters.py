"""Adapters as models."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.runtime.tiny_adapters import random_factors, write_adapter
from tests.server.live import live_server

from ortolan.runtime import Decoder, load
from ortolan.server import Settings

PROMPT = {"prompt": "one two", "max_tokens": 12, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def adapters(
    models: dict[str, Decoder], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Two adapters of the bundle `fp32`."""
    folder, bundle = tmp_path_factory.mktemp("adapters"), models["fp32"].bundle
    return {
        name: write_adapter(folder / name, bundle, random_factors(bundle, seed=seed))
        for seed, name in enumerate(("first", "second"))
    }


@pytest.fixture(scope="module")
def client(bundles: dict[str, Path], adapters: dict[str, Path]) -> Iterator[httpx2.Client]:
    settings = Settings(bundles=bundles, adapters=adapters, load={"threads": 1})
    with (
        live_server(settings) as server,
        server.client() as client,
    ):
        yield client


def test_an_adapter_answers_by_its_name(
    client: httpx2.Client, bundles: dict[str, Path], adapters: dict[str, Path]
) -> None:
    model = load(bundles["fp32"], Decoder, threads=1, adapters=adapters)
    told = set()
    for name in ("fp32", *adapters):
        answer = client.post("/v1/completions", json={**PROMPT, "model": name}).json()
        adapter = None if name == "fp32" else name
        with model.serve() as service:
            ticket = service.submit("one two", max_new_tokens=12, ignore_eos=True, adapter=adapter)
        assert answer["choices"][0]["text"] == ticket.completion().text
        assert answer["model"] == name
        chat = client.post("/v1/chat/completions", json={**CHAT, "model": name}).json()
        told.add((answer["system_fingerprint"], chat["choices"][0]["message"]["content"]))
    assert [len(set(each)) for each in zip(*told, strict=True)] == [3, 3]


def test_adapters_are_listed_with_their_bundle(client: httpx2.Client) -> None:
    cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
    assert set(cards) == {"fp32", "int4", "first", "second"}
    assert cards["first"]["parent"] == "fp32"
    assert cards["first"]["loaded"]
    assert cards["fp32"]["parent"] is None
    assert client.get("/v1/models/second").json()["id"] == "second"
    body = {"model": "first", "content": "Hi"}
    assert client.post("/tokenize", json=body).json()["count"] > 0
    error = client.post("/v1/completions", json={**PROMPT, "model": "third"}).json()["error"]
    assert "first" in error["message"]
