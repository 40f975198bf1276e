"""Who may call: keys, host names and web origins, checked before anything is read."""

import hmac
from collections.abc import Set
from hashlib import sha256
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from ortolan.server.errors import ApiError, error_response
from ortolan.server.settings import Settings

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
"""Host names of this machine."""


class Guard:
    """ASGI middleware that rejects calls from the wrong place or without a key."""

    def __init__(self, app: ASGIApp, *, settings: Settings, open_paths: Set[str]) -> None:
        self._app = app
        self._settings = settings
        self._digests = [sha256(key.encode()).digest() for key in settings.keys]
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then pass it on."""
        try:
            if scope["type"] == "http":
                self._check(scope)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if b"transfer-encoding" in headers and b"content-length" in headers:
            raise ApiError(
                "A request has either Transfer-Encoding or Content-Length: a proxy could "
                "read another body than the server.",
                code="two-lengths",
                headers={"connection": "close"},
            )
        host = headers.get(b"host", "")
        if self._settings.hosts and _host_name(host) not in self._settings.hosts:
            raise ApiError(
                f"The server does not answer for the host {host[:100]!r}. Start it with "
                "--allow-host.",
                code="host",
                status=403,
            )
        origin = headers.get(b"origin")
        origins = self._settings.origins
        if origin is not None and origin not in origins and urlsplit(origin).netloc != host:
            raise ApiError(
                f"Web pages of {origin[:100]!r} may not call the server. Start it with "
                "--allow-origin.",
                code="origin",
                status=403,
            )
        path = scope["path"].removeprefix(self._settings.root_path)
        is_open = path in self._open_paths or scope.get("method") == "OPTIONS"
        if self._digests and not is_open:
            self._check_key(headers)

    def _check_key(self, headers: dict[bytes, str]) -> None:
        kind, _, token = headers.get(b"authorization", "").partition(" ")
        key = token.strip() if kind.lower() == "bearer" else headers.get(b"x-api-key", "")
        digest = sha256(key.encode("latin-1")).digest()
        # every key is compared, so that the time does not tell which one is close
        matches = [hmac.compare_digest(digest, valid) for valid in self._digests]
        if not any(matches):
            raise ApiError(
                "A valid API key is needed: send Authorization: Bearer KEY.",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
                status=401,
            )


def _host_name(host: str) -> str:
    """The name in a `Host` header, without port and brackets, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
