"""The document of the interface, and the endpoints that need no model."""

import httpx2
import pytest


def test_the_document_names_every_endpoint(client: httpx2.Client) -> None:
    document = client.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert "post" in document["paths"]["/v1/chat/completions"]
    assert document["paths"]["/v1/models/{model}"]["get"]["parameters"][0]["name"] == "model"
    schemas = document["components"]["schemas"]
    assert schemas["ChatBody"]["properties"]["messages"]["type"] == "array"
    assert schemas["ChatBody"]["additionalProperties"] is False
    for path in document["paths"].values():
        for operation in path.values():
            is_open = "security" not in operation
            assert is_open == (operation["operationId"] in {
                "get_health", "get_ready", "get_openapi_json"
            })  # fmt: skip


def test_paths_and_methods_that_do_not_exist(client: httpx2.Client) -> None:
    assert client.get("/v1/nothing").status_code == 404
    assert client.post("/v1/nothing").json()["error"]["code"] == "no-such-path"


@pytest.mark.parametrize(
    ("method", "path", "advice"),
    [
        ("GET", "/models", "Add /v1 to the base URL."),
        ("GET", "/models/fp32", "Add /v1 to the base URL."),
        ("POST", "/chat/completions", "Add /v1 to the base URL."),
        ("POST", "/v1/v1/embeddings", "Remove one /v1 from it."),
        ("POST", "/v1/tokenize", "Remove one /v1 from it."),
        ("GET", "/nothing", "There is no such path. /openapi.json lists all paths."),
    ],
)
def test_a_wrong_base_url_is_named(
    client: httpx2.Client, method: str, path: str, advice: str
) -> None:
    response = client.request(method, path)
    assert response.status_code == 404
    assert advice in response.json()["error"]["message"]
    response = client.get("/v1/chat/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"


def test_metrics_count_tokens(client: httpx2.Client) -> None:
    client.post("/v1/completions", json={"model": "fp32", "prompt": "abc", "max_tokens": 3})
    text = client.get("/metrics").text
    assert 'ortolan_slots{model="fp32"} 4' in text
    line = next(line for line in text.splitlines() if line.startswith("ortolan_new_tokens_total"))
    assert float(line.rpartition(" ")[2]) >= 3
    assert "# TYPE ortolan_new_tokens_total counter" in text


@pytest.mark.parametrize(
    ("name", "least"),
    [("queue_seconds", 1), ("time_to_first_token_seconds", 1), ("time_between_tokens_seconds", 2)],
)
def test_metrics_have_histograms_of_times(client: httpx2.Client, name: str, least: int) -> None:
    body = {"model": "fp32", "prompt": "abc", "max_tokens": 3, "ignore_eos": True}
    client.post("/v1/completions", json=body)
    lines = client.get("/metrics").text.splitlines()
    assert f"# TYPE ortolan_{name} histogram" in lines
    mine = [x for x in lines if x.startswith(f"ortolan_{name}_") and 'model="fp32"' in x]
    *buckets, total, count = [float(line.rpartition(" ")[2]) for line in mine]
    assert 'le="+Inf"' in mine[-3]
    assert buckets == sorted(buckets)
    assert buckets[-1] == count >= least
    assert total > 0


def test_tokens_and_text(client: httpx2.Client) -> None:
    body = {"model": "fp32", "content": "Hi there"}
    tokens = client.post("/tokenize", json=body).json()
    assert tokens["count"] == len(tokens["tokens"]) > 0
    back = client.post("/detokenize", json={"model": "fp32", "tokens": tokens["tokens"]}).json()
    assert back == {"content": "Hi there", "prompt": "Hi there"}
    body = {"model": "fp32", "prompt": "Hi there"}
    special = client.post("/tokenize", json=body).json()["tokens"]
    assert special[-len(tokens["tokens"]) :] == tokens["tokens"]
    plain = client.post("/tokenize", json={**body, "add_special_tokens": False}).json()
    assert plain == tokens
    messages = [{"role": "user", "content": "Hi"}]
    chat = client.post("/tokenize", json={"model": "fp32", "messages": messages}).json()
    assert chat["count"] > 2
    without = {"model": "fp32", "messages": messages, "add_generation_prompt": False}
    assert client.post("/tokenize", json=without).json()["count"] < chat["count"]
    info = client.get("/tokenizer_info", params={"model": "fp32"}).json()
    assert (info["bos_token"], info["eos_token"]) == ("<bos>", "<eos>")
    assert "add_generation_prompt" in info["chat_template"]
    assert info["model_max_length"] == chat["max_model_len"]
    assert client.post("/tokenize", json={"model": "fp32"}).status_code == 400


def test_fields_that_gateways_add_are_accepted_with_the_values_that_change_nothing(
    client: httpx2.Client,
) -> None:
    added: dict[str, object] = {
        "no_stop_trim": False,
        "skip_special_tokens": True,
        "return_hidden_states": False,
        "ignore_eos": False,
    }
    chat = {"include_reasoning": True, "separate_reasoning": True, "stream_reasoning": True}
    base: dict[str, object] = {"model": "fp32", "max_tokens": 1}
    bodies: dict[str, dict[str, object]] = {
        "/v1/completions": {**base, "prompt": "a", "echo": False, **added},
        "/v1/chat/completions": {
            **base,
            "messages": [{"role": "user", "content": "a"}],
            "continue_final_message": False,
            **added,
            **chat,
        },
    }
    for path, body in bodies.items():
        assert client.post(path, json=body).status_code == 200, path
    for field in ("no_stop_trim", "skip_special_tokens", "return_hidden_states"):
        changed = {**bodies["/v1/completions"], field: not added[field]}
        response = client.post("/v1/completions", json=changed)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == field
