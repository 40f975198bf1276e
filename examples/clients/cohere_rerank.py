"""Cohere's client: documents by their relevance to a query."""

import os
import sys

import cohere

client = cohere.ClientV2(
    base_url=os.environ["OPENAI_BASE_URL"].removesuffix("/v1"),
    api_key=os.environ["OPENAI_API_KEY"],
)
documents = ["k l", "a b c", "k l m"]
answer = client.rerank(model=sys.argv[1], query="k l", documents=documents, top_n=2)
for result in answer.results:
    print(f"document: {documents[result.index]!r}, score={result.relevance_score:.3f}")
