"""A local server that speaks the Hugging Face Hub's API, with faults on demand.

As on the Hub, LFS files are redirected to another origin (here the same server under the name
localhost), which gets no token; a missing or private repository answers 401 to a client without
a token; and descriptions and listings of gated repositories are public.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from tests.hub import answers
from tests.hub.answers import TOKEN, USER
from tests.hub.messages import RefusalError, Reply, Request
from tests.hub.repository import Repository

__all__ = ["TOKEN", "USER", "Hub", "Repository", "Request", "live_hub"]

CHUNK = 65_536
"""Bytes per write: how exactly `sent` counts when a client hangs up."""

T = TypeVar("T")


class Hub(ThreadingHTTPServer):
    """A running server.

    A fault belongs to requests whose method and unquoted path contain its key, such as
    "GET /cdn/" or "model.safetensors"; each value is used for one request.

    Attributes:
        repositories: by name.
        requests: received so far, in order.
        statuses: HTTP errors to reply with.
        retry_after: seconds, sent with those errors.
        cuts: bytes of a file to send before the connection is closed.
        page_size: entries per page of a listing.
        objects: LFS contents uploaded so far, by SHA-256.
        sleeps: seconds of the waits that huggingface_hub skipped in this process.
        failures: exceptions of this server itself.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, home: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.home = home
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
        self.statuses: dict[str, list[int]] = {}
        self.retry_after = 0
        self.cuts: dict[str, list[int]] = {}
        self.page_size = 1000
        self.objects: dict[str, bytes] = {}
        self.sleeps: list[float] = []
        self.failures: list[BaseException] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def cdn(self) -> str:
        """Another origin: clients must not send their token there."""
        return f"http://localhost:{self.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make a process use this server, and folders of its own."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(self.home),
            "HF_HUB_CACHE": str(self.home / "hub"),
            "HF_ASSETS_CACHE": str(self.home / "assets"),
            "HF_XET_CACHE": str(self.home / "xet"),
            "HF_TOKEN_PATH": str(self.home / "token"),
            **dict.fromkeys(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"), ""),
            **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), "0"),
            **dict.fromkeys(("HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_TELEMETRY"), "1"),
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
        }

    def seen(self, key: str = "") -> list[Request]:
        """Requests whose method and path contain the key."""
        return [request for request in self.requests if key in request.line]

    def sent(self, key: str = "") -> int:
        """Bytes of contents sent in reply to those requests."""
        return sum(request.sent for request in self.seen(key))

    def connections(self, key: str = "") -> int:
        """Number of connections that carried those requests."""
        return len({request.port for request in self.seen(key)})

    def fault(self, faults: dict[str, list[T]], request: Request) -> T | None:
        """The next fault for a request."""
        with self.lock:
            keys = [key for key, queue in faults.items() if queue and key in request.line]
            return faults[keys[0]].pop(0) if keys else None

    def reply(self, request: Request) -> Reply:
        """The reply to a request, or an error on purpose."""
        status = self.fault(self.statuses, request)
        if status is not None:
            headers = {"Retry-After": str(self.retry_after)}
            return RefusalError(status, "", f"HTTP {status} on purpose", headers).reply()
        try:
            with self.lock:
                return answers.answer(self, request)
        except RefusalError as refusal:
            return refusal.reply()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep failures of this server. Clients may hang up."""
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError):
            self.failures.append(error)


class _Handler(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        headers = {name.lower(): value for name, value in self.headers.items()}
        port = self.client_address[1]
        body = self.rfile.read(int(headers.get("content-length", 0)))
        request = Request(self.command, parts.path, query, headers, body, port)
        self.server.requests.append(request)
        reply = self.server.reply(request)
        request.status = reply.status
        cut = None
        if request.method == "GET" and reply.status in (200, 206):
            cut = self.server.fault(self.server.cuts, request)
        self.send_response(reply.status)
        length = len(reply.body) if reply.length is None else reply.length
        for name, value in {"Content-Length": str(length), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if request.method != "HEAD":
            self.send_body(request, reply.body[:cut])
        self.close_connection = self.close_connection or cut is not None

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def send_body(self, request: Request, body: bytes) -> None:
        for start in range(0, len(body), CHUNK):
            chunk = body[start : start + CHUNK]
            request.sent += len(chunk)  # first, so that a client that has it all finds it counted
            self.wfile.write(chunk)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@contextmanager
def live_hub(home: Path) -> Iterator[Hub]:
    """Run a server on a free port.

    Args:
        home: folder for the caches of its clients.

    Yields:
        The server, without repositories.
    """
    with Hub(home) as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
    assert not hub.failures, hub.failures
