"""The endpoints: one module per resource, and the table of all of them."""

from ortolan.server.api import (
    chat_completions,
    completions,
    embeddings,
    models,
    rerank,
    responses,
    status,
    tokens,
    transcriptions,
)
from ortolan.server.api.openapi import openapi_endpoint
from ortolan.server.endpoints import Endpoint

__all__ = ["ENDPOINTS"]

ENDPOINTS: list[Endpoint] = [
    *chat_completions.ENDPOINTS,
    *completions.ENDPOINTS,
    *responses.ENDPOINTS,
    *embeddings.ENDPOINTS,
    *rerank.ENDPOINTS,
    *transcriptions.ENDPOINTS,
    *models.ENDPOINTS,
    *tokens.ENDPOINTS,
    *status.ENDPOINTS,
]
"""All endpoints, in the order of the documentation."""

ENDPOINTS.append(openapi_endpoint(ENDPOINTS))
