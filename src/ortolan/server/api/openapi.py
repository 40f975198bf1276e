"""`/openapi.json`: the document of the interface, from the table of endpoints.

Source: https://spec.openapis.org/oas/v3.1.0
"""

import re
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import msgspec

from ortolan.server.call import Call
from ortolan.server.errors import JSON, ErrorBody
from ortolan.server.http import Endpoint

_REF = "#/components/schemas/{name}"


def openapi_endpoint(endpoints: Sequence[Endpoint]) -> Endpoint:
    """Return the endpoint that documents all endpoints."""
    document = cache(partial(_document, endpoints))

    async def openapi(_: Call) -> dict[str, Any]:
        """Return this document."""
        return document()

    return Endpoint("GET", "/openapi.json", openapi, is_open=True)


def _document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    from ortolan import __version__

    paths: dict[str, Any] = {}
    structures: set[type] = {ErrorBody}
    for endpoint in endpoints:
        path = re.sub(r":\w+}", "}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, path)
        structures.update(filter(None, (endpoint.body, endpoint.answer, endpoint.event)))
    _, schemas = msgspec.json.schema_components(sorted(structures, key=str), ref_template=_REF)
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
    contents = _content(JSON, endpoint.answer)
    if endpoint.event is not None:
        contents["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    operation: dict[str, Any] = {
        "summary": (endpoint.handler.__doc__ or "").partition("\n")[0],
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method.lower()}{path}").strip("_"),
        "responses": {
            "200": {"description": "The answer.", **contents},
            "default": {"description": "An error.", **_content(JSON, ErrorBody)},
        },
    }
    if endpoint.body is not None:
        body = _content(endpoint.media_type, endpoint.body)
        operation["requestBody"] = {"required": True, **body}
    if parameters := re.findall(r"{(\w+)}", path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in parameters
        ]
    if not endpoint.is_open:
        operation["security"] = [{"key": []}]
    return operation


def _content(media_type: str, structure: type | None) -> dict[str, Any]:
    if structure is None:
        return {}
    return {"content": {media_type: {"schema": {"$ref": _REF.format(name=structure.__name__)}}}}
