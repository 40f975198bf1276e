"""Runs the application with uvicorn."""

import asyncio
import logging
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from ortolan.server.app import build_app
from ortolan.server.settings import Settings

__all__ = ["run", "uvicorn_config"]

HEADER_TIMEOUT_S = 10.0
"""Maximum time for the headers of a request to arrive."""

MAX_HEADER_BYTES = 32 << 10
"""Maximum size of the headers of a request."""

MAX_CONNECTIONS = 1024
"""Maximum number of open connections; further ones get a 503."""


class _TimedProtocol(H11Protocol):
    """uvicorn's protocol, which by itself waits for headers without limit."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._arm()

    def _arm(self) -> None:
        self._disarm()
        self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self._close_if_waiting)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_waiting(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


def run(settings: Settings, *, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM; then finish or cancel what runs.

    Args:
        settings: of the application.
        host: address to listen on.
        port: port to listen on; 0 for any free one.

    Raises:
        OrtolanError: the first bundle cannot be loaded.
        OSError: the address is taken.
    """
    asyncio.run(_serve(settings, host=host, port=port))


async def _serve(settings: Settings, *, host: str, port: int) -> None:
    app = build_app(settings)
    await app.state.models.load_first()  # here, because uvicorn prints errors of a start itself
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    await uvicorn.Server(uvicorn_config(app, settings, host=host, port=port)).serve()


def uvicorn_config(app: Starlette, settings: Settings, *, host: str, port: int) -> uvicorn.Config:
    """Configure uvicorn, with limits on headers, connections and the time to shut down."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=_TimedProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="on",
        root_path=settings.root_path,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_timeout_s)),
    )
