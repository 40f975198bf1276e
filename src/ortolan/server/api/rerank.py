"""`/v1/rerank`, for clients of Jina and vLLM `/rerank`, and of Cohere `/v2/rerank`.

A cross-encoder reads the query and a document together and scores them. An embedding model embeds
them apart, and the score is the cosine of their angle. The answer says which.

Source: https://jina.ai/reranker
"""

from functools import partial
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan.runtime import Classification
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.server.api.bodies import Body
from ortolan.server.api.embeddings import InputUsage, expect_texts
from ortolan.server.call import Call
from ortolan.server.errors import ApiError
from ortolan.server.models import ServedModel

DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names that models give to the prompt of a document."""


class Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A document."""

    text: str


class RerankBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A query, and documents to sort.

    Attributes:
        top_n: number of results; all by default.
        return_documents: return the texts, too.
        truncate: cut texts that are too long, at the end; of a pair, the longer one first.
    """

    query: str
    documents: Annotated[list[str | Document], msgspec.Meta(min_length=1)]
    top_n: Annotated[int, msgspec.Meta(ge=1)] | None = None
    return_documents: bool | None = None
    truncate: bool | None = None


class Result(msgspec.Struct, kw_only=True):
    """A document and its score; `index` is its position in the request."""

    index: int
    relevance_score: float
    document: Document | msgspec.UnsetType = msgspec.UNSET


class Ranking(msgspec.Struct, kw_only=True):
    """Results, the most relevant first.

    Attributes:
        method: `cross-encoder`, or `cosine` of embeddings.
    """

    model: str
    method: Literal["cross-encoder", "cosine"]
    results: list[Result]
    usage: InputUsage
    object: Literal["list"] = "list"


async def create(call: Call, body: RerankBody) -> Ranking:
    """Sort documents by their relevance to a query."""
    served = await call.model(body.model)
    source = expect_texts(served, what="rerank")
    texts = [d if isinstance(d, str) else d.text for d in body.documents]
    is_embedder = served.model.manifest.output.kind == "embedding"
    if is_embedder:
        scores, tokens = await _cosines(call, served, source, body, texts)
    else:
        scores, tokens = await _paired(call, served, body, texts)
    order = sorted(range(len(texts)), key=lambda index: -scores[index])
    return Ranking(
        model=served.name,
        method="cosine" if is_embedder else "cross-encoder",
        results=[
            Result(
                index=index,
                relevance_score=scores[index],
                document=Document(text=texts[index]) if body.return_documents else msgspec.UNSET,
            )
            for index in order[: body.top_n]
        ],
        usage=InputUsage(prompt_tokens=tokens, total_tokens=tokens),
    )


async def _cosines(
    call: Call, served: ServedModel, source: TextSource, body: RerankBody, texts: list[str]
) -> tuple[list[float], int]:
    """The cosine of query and document, and the number of tokens."""

    async def units(inputs: list[str], *names: str) -> tuple[NDArray[np.float32], int]:
        """Vectors of length 1, with the first of these prompts that the model has."""
        prompt = next((name for name in names if name in source.prompts), None)
        options = {"prompt": prompt, "truncate": bool(body.truncate)}
        rows_NW: NDArray[np.float32]
        rows_NW, tokens = await call.encoded(partial(served.service.embed, inputs, **options))
        lengths_N1 = np.linalg.norm(rows_NW, axis=1, keepdims=True)
        return rows_NW / np.maximum(lengths_N1, np.finfo(np.float32).tiny), tokens

    query_1W, query_tokens = await units([body.query], "query")
    documents_NW, tokens = await units(texts, *DOCUMENT_PROMPTS)
    scores_N = documents_NW @ query_1W[0]
    return scores_N.astype(np.float64).tolist(), query_tokens + tokens


async def _paired(
    call: Call, served: ServedModel, body: RerankBody, texts: list[str]
) -> tuple[list[float], int]:
    """The score of each pair, and the number of tokens."""
    if len(served.model.manifest.output.labels) != 1 or served.model.tokenizer is None:
        raise ApiError(
            f"The model {served.name!r} cannot rerank: that needs an embedding model, or "
            "a classifier of pairs with a single label.",
            param="model",
        )
    pairs = [(body.query, text) for text in texts]
    classified: list[Classification]
    classify = partial(served.service.classify, pairs, truncate=bool(body.truncate))
    classified, tokens = await call.encoded(classify)
    return [float(each.score) for each in classified], tokens
