"""Tokens, metrics, adapters as models, the document of the interface, and no such paths."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.runtime.tiny_adapters import random_factors, write_adapter
from tests.server.calls import post_ok
from tests.server.live import live_server

from ortolan.runtime import Decoder, load
from ortolan.server import Settings

TEXT = "What is the capital of France ?"


def tokens(client: httpx2.Client, **body: Any) -> Any:
    return post_ok(client, "/tokenize", body)


def test_tokens_and_text(client: httpx2.Client) -> None:
    plain = tokens(client, content=TEXT)
    assert plain["count"] == len(plain["tokens"]) > 5
    back = post_ok(client, "/detokenize", {"tokens": plain["tokens"]})
    assert back == {"content": TEXT, "prompt": TEXT}
    assert tokens(client, prompt=TEXT)["tokens"][-plain["count"] :] == plain["tokens"]
    assert tokens(client, prompt=TEXT, add_special_tokens=False) == plain


def test_messages_become_tokens(client: httpx2.Client) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    chat = tokens(client, messages=messages)
    assert tokens(client, messages=messages, add_generation_prompt=False)["count"] < chat["count"]
    info = client.get("/tokenizer_info", params={"model": "fp32"}).json()
    assert (info["bos_token"], info["eos_token"]) == ("<bos>", "<eos>")
    assert "add_generation_prompt" in info["chat_template"]
    assert info["model_max_length"] == chat["max_model_len"]


def test_values_of_the_client_are_not_changed_with_the_fields_of_a_body(
    client: httpx2.Client,
) -> None:
    function = {"name": "f", "arguments": {"x": 1.0, "y": None, "grammar": ""}}
    call = {"type": "function", "function": function}
    body = {"messages": [{"role": "assistant", "tool_calls": [call]}], "guided_json": None}
    text = post_ok(client, "/detokenize", {"tokens": tokens(client, **body)["tokens"]})["content"]
    assert '{"x": 1.0, "y": null, "grammar": ""}' in text


@pytest.fixture
def metrics(client: httpx2.Client) -> list[str]:
    prompt = "Metrics count the cached tokens of prompts. " * 4
    for _ in range(2):
        post_ok(client, "/v1/completions", {"prompt": prompt, "max_tokens": 3, "ignore_eos": True})
    return client.get("/metrics").text.splitlines()


def values(lines: list[str], name: str) -> list[float]:
    mine = [x for x in lines if x.startswith(f"ortolan_{name}") and 'model="fp32"' in x]
    return [float(line.rpartition(" ")[2]) for line in mine]


def test_metrics_count_tokens(metrics: list[str]) -> None:
    assert values(metrics, "slots{") == [4]
    assert values(metrics, "new_tokens_total{")[0] >= 6
    assert values(metrics, "cached_tokens_total{")[0] > 0
    assert "# TYPE ortolan_new_tokens_total counter" in metrics


@pytest.mark.parametrize(
    ("name", "least"),
    [("queue_seconds", 2), ("time_to_first_token_seconds", 2), ("time_between_tokens_seconds", 4)],
)
def test_metrics_have_histograms_of_times(metrics: list[str], name: str, least: int) -> None:
    assert f"# TYPE ortolan_{name} histogram" in metrics
    *buckets, total, count = values(metrics, f"{name}_")
    assert sum(f'{name}_bucket{{model="fp32",le="+Inf"}}' in line for line in metrics) == 1
    assert buckets == sorted(buckets)
    assert buckets[-1] == count >= least
    assert total > 0


def test_the_document_names_every_endpoint(client: httpx2.Client) -> None:
    document = client.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert "post" in document["paths"]["/v1/chat/completions"]
    assert document["paths"]["/v1/models/{model}"]["get"]["parameters"][0]["name"] == "model"
    schemas = document["components"]["schemas"]
    assert schemas["ChatBody"]["properties"]["messages"]["type"] == "array"
    assert schemas["ChatBody"]["additionalProperties"] is False
    operations = [one for path in document["paths"].values() for one in path.values()]
    assert {one["operationId"] for one in operations if "security" not in one} == {
        *("get_health", "get_ready", "get_openapi_json")
    }


NOTHING = "There is no such path. /openapi.json lists all paths."


@pytest.mark.parametrize(
    ("method", "path", "advice"),
    [
        ("GET", "/models", "Add /v1 to the base URL."),
        ("GET", "/models/fp32", "Add /v1 to the base URL."),
        ("POST", "/chat/completions", "Add /v1 to the base URL."),
        ("POST", "/v1/v1/embeddings", "Remove one /v1 from it."),
        ("POST", "/v1/tokenize", "Remove one /v1 from it."),
        ("POST", "/v1/nothing", NOTHING),
        ("GET", "/nothing", NOTHING),
    ],
)
def test_a_wrong_base_url_is_named(
    client: httpx2.Client, method: str, path: str, advice: str
) -> None:
    response = client.request(method, path)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "no-such-path"
    assert advice in response.json()["error"]["message"]


def test_a_wrong_method_names_the_right_one(client: httpx2.Client) -> None:
    response = client.get("/v1/chat/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


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
def adapted(bundles: dict[str, Path], adapters: dict[str, Path]) -> Iterator[httpx2.Client]:
    settings = Settings(bundles=bundles, adapters=adapters, load={"threads": 1})
    with (
        live_server(settings) as server,
        server.client() as client,
    ):
        yield client


def test_an_adapter_answers_by_its_name(
    adapted: httpx2.Client, bundles: dict[str, Path], adapters: dict[str, Path]
) -> None:
    model = load(bundles["fp32"], Decoder, threads=1, adapters=adapters)
    told = set()
    for name in ("fp32", *adapters):
        answer = adapted.post("/v1/completions", json={**PROMPT, "model": name}).json()
        adapter = None if name == "fp32" else name
        with model.serve() as service:
            ticket = service.submit("one two", max_new_tokens=12, ignore_eos=True, adapter=adapter)
        assert answer["choices"][0]["text"] == ticket.result().text
        assert answer["model"] == name
        chat = adapted.post("/v1/chat/completions", json={**CHAT, "model": name}).json()
        told.add((answer["system_fingerprint"], chat["choices"][0]["message"]["content"]))
    assert [len(set(each)) for each in zip(*told, strict=True)] == [3, 3]


def test_adapters_are_listed_with_their_bundle(adapted: httpx2.Client) -> None:
    cards = {card["id"]: card for card in adapted.get("/v1/models").json()["data"]}
    assert {"fp32", "int4", "first", "second"} <= set(cards)
    assert cards["first"]["parent"] == "fp32"
    assert cards["first"]["loaded"]
    assert cards["fp32"]["parent"] is None
    assert adapted.get("/v1/models/second").json()["id"] == "second"
    body = {"model": "first", "content": "Hi"}
    assert adapted.post("/tokenize", json=body).json()["count"] > 0
    error = adapted.post("/v1/completions", json={**PROMPT, "model": "third"}).json()["error"]
    assert "first" in error["message"]
