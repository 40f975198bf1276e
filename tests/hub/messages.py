"""Requests to the local hub, and its replies."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.hub.repository import Json


@dataclass
class Request:
    """A request and its outcome.

    Attributes:
        path: quoted, without the query.
        headers: by name in lower case.
        port: of the client, which tells connections apart.
        status: of the reply.
        sent: bytes of contents sent.
    """

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    port: int
    status: int = 0
    sent: int = 0

    @property
    def line(self) -> str:
        return f"{self.method} {unquote(self.path)}"

    @property
    def range(self) -> str | None:
        return self.headers.get("range")

    @property
    def token(self) -> str | None:
        header = self.headers.get("authorization")
        return None if header is None else header.removeprefix("Bearer ")

    @property
    def json(self) -> Json:
        return json.loads(self.body)

    def first(self, name: str, default: str = "") -> str:
        """The first value of a name in the query."""
        return self.query.get(name, [default])[0]

    def flag(self, name: str) -> bool:
        return self.first(name).lower() in ("1", "true")


@dataclass
class Reply:
    """A reply; `length` is announced instead of the body's."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None


@dataclass
class RefusalError(Exception):
    """An error reply."""

    status: int
    code: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def reply(self) -> Reply:
        code = {"X-Error-Code": self.code} if self.code else {}
        headers = {"X-Error-Message": self.message, **code, **self.headers}
        return in_json({"error": self.message}, self.status, headers)


def in_json(data: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    headers = {"Content-Type": "application/json", **(headers or {})}
    return Reply(status, json.dumps(data).encode(), headers)
