"""Embeddings and reranking: the vectors and scores of the model in this process."""

import base64
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.server.calls import post_ok

from ortolan.runtime import Encoder, load

TEXTS = ["a b c", "d", "e f g h", "a b"]
QUERY = {"model": "embedder", "query": "a b", "documents": TEXTS}


def embed(client: httpx2.Client, value: Any, **more: Any) -> Any:
    return post_ok(client, "/v1/embeddings", {"model": "embedder", "input": value, **more})


def vectors(bundles: dict[str, Path], inputs: Any, **options: Any) -> NDArray[np.float32]:
    return load(bundles[options.pop("name", "embedder")], Encoder).embed(inputs, **options)


@pytest.mark.parametrize("value", [TEXTS, "a b c", [2, 4, 3], [[2, 4, 3], [2, 5, 6, 3]]])
@pytest.mark.parametrize("form", ["float", "base64"])
def test_vectors_are_those_of_the_model(
    client: httpx2.Client, bundles: dict[str, Path], value: Any, form: str
) -> None:
    answer = embed(client, value, encoding_format=form)
    data = [entry["embedding"] for entry in answer["data"]]
    if form == "base64":
        data = [np.frombuffer(base64.b64decode(text), "<f4") for text in data]
    np.testing.assert_allclose(np.array(data), vectors(bundles, value), rtol=1e-6)
    assert [entry["index"] for entry in answer["data"]] == list(range(len(data)))
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 0


def test_prompts_and_truncation(client: httpx2.Client, bundles: dict[str, Path]) -> None:
    answer = embed(client, "a", model="prompted", prompt_name="query")
    expected = vectors(bundles, "a", name="prompted", prompt="query")[0]
    np.testing.assert_allclose(answer["data"][0]["embedding"], expected, rtol=1e-6)
    assert embed(client, "a " * 40, truncate=True)["usage"]["prompt_tokens"] == 24


def rerank(client: httpx2.Client, **body: Any) -> Any:
    return post_ok(client, "/v1/rerank", {**QUERY, **body})


def scores_of(answer: Any) -> list[float]:
    """The scores in the order of the documents; checks that the best comes first."""
    scores = {each["index"]: each["relevance_score"] for each in answer["results"]}
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    return [scores[index] for index in range(len(scores))]


@pytest.mark.parametrize("name", ["embedder", "prompted"])
def test_reranking_by_embeddings(
    client: httpx2.Client, bundles: dict[str, Path], name: str
) -> None:
    prompts = ("query", "document") if name == "prompted" else (None, None)
    query = vectors(bundles, "a b", name=name, prompt=prompts[0])[0]
    documents = vectors(bundles, TEXTS, name=name, prompt=prompts[1])
    answer = rerank(client, model=name)
    assert answer["method"] == "cosine"
    np.testing.assert_allclose(scores_of(answer), documents @ query, rtol=1e-5)


def test_reranking_by_a_cross_encoder(client: httpx2.Client, bundles: dict[str, Path]) -> None:
    answer = rerank(client, model="pairs")
    assert answer["method"] == "cross-encoder"
    expected = load(bundles["pairs"], Encoder).classify([("a b", text) for text in TEXTS])
    np.testing.assert_allclose(scores_of(answer), [each.score for each in expected], rtol=1e-5)
    assert answer["usage"]["total_tokens"] > len(TEXTS) * 5


def test_long_documents_of_a_cross_encoder_are_cut_on_request(client: httpx2.Client) -> None:
    documents = ["a " * 30, "a " * 40, "b"]
    answer = rerank(client, model="pairs", documents=documents, truncate=True)
    scores = scores_of(answer)
    assert scores[0] == pytest.approx(scores[1])
    assert answer["usage"]["total_tokens"] <= 3 * 24


def test_top_documents_are_returned(client: httpx2.Client) -> None:
    documents = ["a b c", {"text": "a b"}]
    answer = rerank(client, documents=documents, top_n=1, return_documents=True)
    assert [result["document"] for result in answer["results"]] == [{"text": "a b"}]
    assert "document" not in rerank(client, top_n=1)["results"][0]


def test_metrics_of_encoders(client: httpx2.Client) -> None:
    embed(client, "a")
    line = 'ortolan_requests_finished_total{model="embedder"}'
    assert line in client.get("/metrics").text
