"""Runs the application with uvicorn."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette

from ortolan.errors import OrtolanError
from ortolan.server.app import build_app
from ortolan.server.settings import Settings

log = logging.getLogger("ortolan.server")

MAX_HEADER_BYTES = 32 << 10
"""Maximum size of headers that are still incomplete."""


MAX_CONNECTIONS = 512
"""Number of connections from which requests get a 503: half of the usual file descriptors."""


class AddressError(OrtolanError, code="address"):
    """The server cannot listen on its address."""


class _Server(uvicorn.Server):
    """uvicorn's server, with a line in our log when it starts and stops."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            log.info("listening on %s", _url(listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stopping")
        await super().shutdown(sockets=sockets)


def run(settings: Settings, *, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM; then accept no more, and finish or cancel what runs."""
    with _bound(host, port) as listener:
        asyncio.run(_serve(settings, listener))


async def _serve(settings: Settings, listener: socket.socket) -> None:
    app = build_app(settings)
    await app.state.models.load_first()  # here, because uvicorn prints errors of a start itself
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # less is noise of bad requests
    with _ending_well(signal.SIGTERM):
        await _Server(uvicorn_config(app, settings)).serve(sockets=[listener])


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket with this address. It does not listen yet, so no client waits for the model."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressError(f"{host} is no address of this machine: {error.strerror}.") from error
    with listener:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise AddressError(
                f"Cannot listen on port {port} of {host}: {error.strerror}. Choose another --port."
            ) from error
        yield listener


@contextmanager
def _ending_well(number: signal.Signals) -> Iterator[None]:
    """Exit normally after a signal, which uvicorn raises again when it is done."""
    before = signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(number, before)


def _url(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def uvicorn_config(app: Starlette, settings: Settings, **options: Any) -> uvicorn.Config:
    """Configure uvicorn, with limits on headers, connections and the time to shut down."""
    return uvicorn.Config(
        app,
        http="h11",  # the one whose headers have a limit
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
        **options,
    )
