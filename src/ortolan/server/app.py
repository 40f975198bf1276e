"""Builds the application of a server: endpoints behind a guard and a log."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from ortolan.server.access_log import AccessLog
from ortolan.server.api import ENDPOINTS
from ortolan.server.errors import ApiError, error_response
from ortolan.server.http import EndpointApp
from ortolan.server.models import Models
from ortolan.server.page import page_routes
from ortolan.server.security import Guard
from ortolan.server.settings import Settings
from ortolan.server.store import Store


def build_app(settings: Settings) -> Starlette:
    """Build the ASGI application. It loads the first bundle when it starts.

    Its `state.models` are the models.
    """
    models = Models(settings)
    store = Store(max_entries=settings.max_stored_responses, max_bytes=settings.max_stored_bytes)
    page = page_routes()
    open_paths = {route.path for route in page} | {e.path for e in ENDPOINTS if e.is_open}

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await models.load_first()
        try:
            yield
        finally:
            await models.close()

    cross_origin = Middleware(
        CORSMiddleware,
        allow_origins=settings.origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],  # clients send headers of their own, such as X-Stainless-Lang
        expose_headers=["Retry-After", "Retry-After-Ms", "X-Request-Id"],
    )
    app = Starlette(
        routes=[
            *(
                Route(e.path, EndpointApp(e, models, store, settings), methods=[e.method])
                for e in ENDPOINTS
            ),
            *page,
        ],
        lifespan=lifespan,
        middleware=[
            Middleware(AccessLog, log_prompts=settings.log_prompts),
            *([cross_origin] if settings.origins else []),
            Middleware(Guard, settings=settings, open_paths=open_paths),
        ],
        exception_handlers={HTTPException: _http_error},
    )
    app.state.models = models
    return app


def _near_path(request: Request) -> str:
    """Advice if only the base URL is wrong, which clients extend with or without /v1."""
    root = request.scope.get("root_path", "")
    path = request.scope["path"].removeprefix(root)
    for near, advice in (
        (f"/v1{path}", " Add /v1 to the base URL."),
        (path.removeprefix("/v1"), " Remove one /v1 from it."),
    ):
        scope = {**request.scope, "path": f"{root}{near}"}
        if any(route.matches(scope)[0] is not Match.NONE for route in request.app.routes):
            return advice
    return ""


async def _http_error(request: Request, error: Exception) -> Response:
    """Errors of the router: no such path, or no such method."""
    status: Any = getattr(error, "status_code", 500)
    message = {
        404: f"There is no such path.{_near_path(request)} /openapi.json lists all paths.",
        405: "The path does not support this method. /openapi.json lists what it does.",
    }.get(status, str(error))
    headers = getattr(error, "headers", None) or {}
    return error_response(ApiError(message, code="no-such-path", headers=headers, status=status))
