"""Embeddings and reranking: the vectors and scores of the model in this process."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import tokenizers
from numpy.typing import NDArray
from tests.runtime import tiny_encoder
from tests.server.calls import post_ok, refusal
from tests.server.live import live_server
from tokenizers.processors import TemplateProcessing

from ortolan.runtime import Encoder, TokenizerError, load
from ortolan.runtime.bundle.sources import TextSource
from ortolan.runtime.inputs.tokenizer import Tokenizer
from ortolan.server import Settings

TEXTS = ["a b c", "d", "e f g h", "a b"]
QUERY = {"model": "embedder", "query": "a b", "documents": TEXTS}
PROMPTS = TextSource(max_tokens=24, prompts={"query": "k ", "document": "l "})


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("encoders")
    write = tiny_encoder.write_bundle
    return {
        "embedder": write(folder / "embedder", kind="embedding").path,
        "prompted": write(folder / "prompted", kind="embedding", source=PROMPTS).path,
        "labels": write(folder / "labels", kind="labels").path,
        "pairs": write(folder / "pairs", kind="scores", labels=("relevant",)).path,
        "images": write(folder / "images", kind="embedding", image=tiny_encoder.IMAGE).path,
    }


@pytest.fixture(scope="module")
def client(bundles: dict[str, Path]) -> Iterator[httpx2.Client]:
    with (
        live_server(Settings(bundles=bundles, load={"threads": 1})) as server,
        server.client() as client,
    ):
        yield client


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


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"input": []}, "input", "empty"),
        ({"input": ""}, None, "no tokens"),
        ({"input": "a " * 40}, None, "limit is 24"),
        ({"input": [999]}, None, "999"),
        ({"input": "a", "dimensions": 4}, "dimensions", "8"),
        ({"input": "a", "prompt_name": "query"}, None, "no prompt"),
        ({"input": "a", "model": "labels"}, None, "embed"),
        ({"input": "/etc/hostname", "model": "images"}, "model", "images"),
        ({"input": ["a"] * 2049}, None, "2048"),
    ],
)
def test_wrong_inputs_are_client_errors(
    client: httpx2.Client, body: dict[str, Any], param: str | None, words: str
) -> None:
    error = refusal(client, "/v1/embeddings", {"model": "embedder", **body})
    assert words in error["message"]
    assert error["param"] == param


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
    answer = rerank(client, model=name)
    assert answer["method"] == "cosine"
    has_prompts = name == "prompted"
    query = vectors(bundles, "a b", name=name, prompt="query" if has_prompts else None)[0]
    documents = vectors(bundles, TEXTS, name=name, prompt="document" if has_prompts else None)
    np.testing.assert_allclose(scores_of(answer), documents @ query, rtol=1e-5)
    if not has_prompts:
        assert answer["results"][0]["index"] == 3


def test_reranking_by_a_cross_encoder(client: httpx2.Client, bundles: dict[str, Path]) -> None:
    answer = rerank(client, model="pairs")
    assert answer["method"] == "cross-encoder"
    model = load(bundles["pairs"], Encoder)
    assert model.tokenizer is not None
    pairs = [model.tokenizer.encode_pair("a b", text) for text in TEXTS]
    expected = [each.score for each in model.classify(pairs)]
    np.testing.assert_allclose(scores_of(answer), expected, rtol=1e-5)
    assert answer["usage"]["total_tokens"] == sum(map(len, pairs))


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


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"documents": []}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"model": "labels"}, "single label"),
        ({"model": "pairs", "query": "a " * 30}, "limit is 24"),
        ({"model": "pairs", "documents": ["a " * 30]}, "limit is 24"),
        ({"model": "images"}, "images"),
        ({"documents": [{"title": "x"}]}, "title"),
    ],
)
def test_what_cannot_be_ranked(client: httpx2.Client, body: dict[str, Any], words: str) -> None:
    assert words in refusal(client, "/v1/rerank", {**QUERY, **body})["message"]


def test_metrics_of_encoders(client: httpx2.Client) -> None:
    response = client.get("/metrics")
    assert response.status_code == 200
    assert 'ortolan_requests_finished_total{model="embedder"}' in response.text


def paired(data: bytes, *, second_type: int) -> bytes:
    tokenizer = tokenizers.Tokenizer.from_str(data.decode())
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B:{second_type} [SEP]:{second_type}",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer.to_str().encode()


def test_pairs_with_type_ids_are_rejected() -> None:
    def tokenizer(second_type: int) -> Tokenizer:
        return Tokenizer.from_bytes(paired(tiny_encoder.tokenizer_json(), second_type=second_type))

    assert tokenizer(0).encode_pair("a", "b c") == [2, 4, 3, 5, 6, 3]
    with pytest.raises(TokenizerError, match="type ids"):
        tokenizer(1).encode_pair("a", "b")
