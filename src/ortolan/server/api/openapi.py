"""`/openapi.json`: the document of the interface, from the table of endpoints.

Source: https://spec.openapis.org/oas/v3.1.0
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from ortolan.server.call import Call
from ortolan.server.endpoints import Answer, Endpoint

_REF = "#/components/schemas/{name}"


class Error(msgspec.Struct, kw_only=True):
    """An error: its message says what to do."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, kw_only=True):
    """Body of every response with a status from 400 on."""

    error: Error


def openapi_endpoint(endpoints: list[Endpoint]) -> Endpoint:
    """Return the endpoint that documents all endpoints."""

    @cache
    def document() -> dict[str, Any]:
        return _document(endpoints)

    async def openapi(_: Call, __: None) -> Answer:
        return document()

    return Endpoint("GET", "/openapi.json", openapi, "This document.", is_open=True)


def _document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    from ortolan import __version__

    paths: dict[str, Any] = {}
    structures: list[type] = [ErrorBody]
    for endpoint in endpoints:
        path = re.sub(r":\w+}", "}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, path)
        structures += [s for s in (endpoint.body, endpoint.answer, endpoint.event) if s]
    _, schemas = msgspec.json.schema_components(structures, ref_template=_REF)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ortolan", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint, path: str) -> dict[str, Any]:
    contents: dict[str, Any] = {}
    if endpoint.answer is not None:
        contents["application/json"] = _content(endpoint.answer)
    if endpoint.event is not None:
        contents["text/event-stream"] = {"schema": {"type": "string"}}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method.lower()}{path}").strip("_"),
        "responses": {
            "200": {"description": "The answer.", **({"content": contents} if contents else {})},
            "default": {
                "description": "An error.",
                "content": {"application/json": _content(ErrorBody)},
            },
        },
    }
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {endpoint.media_type: _content(endpoint.body)},
        }
    parameters = re.findall(r"{(\w+)}", path)
    if parameters:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in parameters
        ]
    if not endpoint.is_open:
        operation["security"] = [{"key": []}]
    return operation


def _content(structure: type) -> dict[str, Any]:
    return {"schema": {"$ref": _REF.format(name=structure.__name__)}}
