"""A server in a thread of this process, on a free port."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from tests.runtime.serving.holding import held as held_service
from uvicorn.server import ServerState

from ortolan.server.app import build_app
from ortolan.server.models import Models
from ortolan.server.run import uvicorn_config
from ortolan.server.settings import Settings


class LiveServer:
    """A running server.

    Attributes:
        port: it listens on.
        models: that it serves.
        connections: that are open.
        tasks: calls that have not ended.
    """

    def __init__(self, port: int, models: Models, state: ServerState) -> None:
        self.port = port
        self.models = models
        self.connections: Set[object] = state.connections
        self.tasks: Set[object] = state.tasks

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx2.Client:
        """A client that no proxy of this machine's environment stands before."""
        return httpx2.Client(**{"base_url": self.url, "timeout": 60, "trust_env": False, **options})

    def call(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """The response to one request, on a connection of its own."""
        with self.client() as client:
            return client.request(method, path, **options)


@contextmanager
def live_server(settings: Settings) -> Iterator[LiveServer]:
    """Run a server; at the end it finishes or cancels what runs."""
    app = build_app(settings)
    server = uvicorn.Server(uvicorn_config(app, settings, host="127.0.0.1", port=0))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < until
        time.sleep(0.01)
    port: int = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield LiveServer(port, app.state.models, server.server_state)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@contextmanager
def serving_fp32(bundles: Mapping[str, Path], **settings: Any) -> Iterator[LiveServer]:
    """Run a server of one model, on one thread."""
    only = {"fp32": bundles["fp32"]}
    with live_server(Settings(bundles=only, load={"threads": 1}, **settings)) as running:
        yield running


def stats(server: LiveServer) -> Any:
    """Counts of the service of the first model."""
    return server.models.loaded[0].service.stats()


def wait_until(condition: Callable[[], Any]) -> None:
    """Fail if a condition does not become true within a minute."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def held(server: LiveServer) -> AbstractContextManager[Any]:
    """Like `held` of a service, of the first model."""
    return held_service(server.models.loaded[0].service)
