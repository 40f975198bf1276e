"""The endpoints: one module per resource, and the table of all of them."""

from ortolan.server.api import (
    chat_completions,
    completions,
    embeddings,
    models,
    rerank,
    status,
    tokens,
    transcriptions,
)
from ortolan.server.api.openapi import openapi_endpoint
from ortolan.server.api.responses import create as responses
from ortolan.server.body_reader import FORM
from ortolan.server.http import Endpoint

ENDPOINTS: list[Endpoint] = [
    Endpoint("POST", "/v1/chat/completions", chat_completions.create),
    Endpoint("POST", "/v1/completions", completions.create),
    Endpoint("POST", "/v1/responses", responses.create),
    Endpoint("GET", "/v1/responses/{response}", responses.get_response),
    Endpoint("GET", "/v1/responses/{response}/input_items", responses.list_input_items),
    Endpoint("DELETE", "/v1/responses/{response}", responses.delete_response),
    Endpoint("POST", "/v1/embeddings", embeddings.create),
    Endpoint("POST", "/v1/rerank", rerank.create),
    Endpoint("POST", "/rerank", rerank.create),
    Endpoint("POST", "/v2/rerank", rerank.create),
    Endpoint("POST", "/v1/audio/transcriptions", transcriptions.transcribe, FORM),
    Endpoint("POST", "/v1/audio/translations", transcriptions.translate, FORM),
    Endpoint("GET", "/v1/models", models.list_models),
    Endpoint("GET", "/v1/models/{model:path}", models.get_model),
    Endpoint("POST", "/tokenize", tokens.tokenize),
    Endpoint("POST", "/detokenize", tokens.detokenize),
    Endpoint("GET", "/tokenizer_info", tokens.tokenizer_info),
    Endpoint("GET", "/health", status.health, is_open=True),
    Endpoint("GET", "/ready", status.ready, is_open=True),
    Endpoint("GET", "/metrics", status.metrics),
]
"""All endpoints, in the order of the documentation."""

ENDPOINTS.append(openapi_endpoint(ENDPOINTS))
