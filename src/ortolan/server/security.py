"""Who may call: keys, host names and web origins, checked before anything is read."""

import hmac
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from ortolan.server.errors import ApiError, error_response

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
"""Host names of this machine."""

App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]


class Guard:
    """ASGI middleware that rejects calls from the wrong place or without a key."""

    def __init__(
        self,
        app: App,
        *,
        keys: Iterable[str],
        hosts: Iterable[str],
        origins: Iterable[str],
        open_paths: Iterable[str],
        root_path: str = "",
    ) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys]
        self._hosts = frozenset(hosts)
        self._origins = frozenset(origins)
        self._open_paths = frozenset(open_paths)
        self._root_path = root_path

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Check a request, then pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: MutableMapping[str, Any]) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if b"transfer-encoding" in headers and b"content-length" in headers:
            raise ApiError(
                "A request has either Transfer-Encoding or Content-Length: a proxy could "
                "read another body than the server.",
                code="two-lengths",
                headers={"connection": "close"},
            )
        host = headers.get(b"host", "")
        if self._hosts and _host_name(host) not in self._hosts:
            raise ApiError(
                f"The server does not answer for the host {host[:100]!r}. Start it with "
                "--allow-host.",
                code="host",
                status=403,
            )
        origin = headers.get(b"origin")
        if origin is not None and not self._is_allowed(origin, host):
            raise ApiError(
                f"Web pages of {origin[:100]!r} may not call the server. Start it with "
                "--allow-origin.",
                code="origin",
                status=403,
            )
        path = scope["path"].removeprefix(self._root_path)
        is_open = path in self._open_paths or scope.get("method") == "OPTIONS"
        if self._digests and not is_open:
            self._check_key(headers)

    def _is_allowed(self, origin: str, host: str) -> bool:
        return origin in self._origins or urlsplit(origin).netloc == host

    def _check_key(self, headers: dict[bytes, str]) -> None:
        kind, _, token = headers.get(b"authorization", "").partition(" ")
        key = token.strip() if kind.lower() == "bearer" else headers.get(b"x-api-key", "")
        digest = sha256(key.encode("latin-1")).digest()
        # every key is compared, so that the time does not tell which one is close
        matches = [hmac.compare_digest(digest, valid) for valid in self._digests]
        if not any(matches):
            raise ApiError(
                "A valid API key is needed: send Authorization: Bearer KEY.",
                type="authentication_error",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
                status=401,
            )


def _host_name(host: str) -> str:
    """The name in a `Host` header, without port and brackets, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
