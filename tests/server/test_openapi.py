"""The document of the interface, and paths that do not exist."""

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


@pytest.mark.parametrize(
    ("method", "path", "advice"),
    [
        ("GET", "/models", "Add /v1 to the base URL."),
        ("GET", "/models/fp32", "Add /v1 to the base URL."),
        ("POST", "/chat/completions", "Add /v1 to the base URL."),
        ("POST", "/v1/v1/embeddings", "Remove one /v1 from it."),
        ("POST", "/v1/tokenize", "Remove one /v1 from it."),
        ("POST", "/v1/nothing", "There is no such path. /openapi.json lists all paths."),
        ("GET", "/nothing", "There is no such path. /openapi.json lists all paths."),
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
