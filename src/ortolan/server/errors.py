"""Errors as OpenAI's clients read them.

Clients retry 408, 409, 429 and 5xx, so what fails again in the same way is a 400, or says
`x-should-retry: false`.
"""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

import msgspec
from starlette.responses import Response

from ortolan.errors import OrtolanError
from ortolan.runtime import errors as runtime

JSON = "application/json"

_NO_RETRY = {"x-should-retry": "false"}

_STATUSES: tuple[tuple[type[OrtolanError], int], ...] = (
    (runtime.QueueFullError, 429),
    (runtime.ServiceClosedError, 503),
    (runtime.ServiceError, 500),
    (runtime.MissingExtraError, 501),
    (runtime.ChatTemplateError, 400),
    (runtime.BundleError, 503),
    (runtime.DeviceError, 503),
    (runtime.InputError, 400),
    (runtime.MemoryPlanError, 400),
    (OrtolanError, 500),
)
"""Status of each error; the first class that fits applies."""


@dataclass(eq=False)
class ApiError(Exception):
    """An error to send to the client.

    Attributes:
        message: what is wrong and what to do.
        status: HTTP status.
        code: stable identifier for programs.
        param: field of the body that is wrong.
        headers: further headers of the response.
    """

    message: str
    _: KW_ONLY
    status: int = 400
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """OpenAI's class of errors."""
        own = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status)
        return own or ("server_error" if self.status >= 500 else "invalid_request_error")


def api_error(error: Exception) -> ApiError:
    """Turn any exception into an error for the client. Bugs reveal nothing but their class."""
    match error:
        case ApiError():
            return error
        case msgspec.ValidationError():
            return _validation_error(str(error))
        case OrtolanError():
            return _ortolan_error(error)
        case RecursionError() | msgspec.DecodeError():
            text = " ".join(str(error).split()) or type(error).__name__
            return ApiError(f"The body is not valid JSON: {text}.", code="invalid-json")
    return ApiError(
        f"{type(error).__name__} in the server, a bug in Ortolan. See its log.",
        code="bug",
        headers=_NO_RETRY,
        status=500,
    )


class Error(msgspec.Struct, kw_only=True):
    """An error: its message says what to do."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, kw_only=True):
    """Body of every response with a status from 400 on."""

    error: Error


def error_body(error: ApiError) -> ErrorBody:
    """The body that says an error."""
    return ErrorBody(error=msgspec.convert(error, Error, from_attributes=True))


def error_response(error: ApiError) -> Response:
    """The response of an error."""
    data = msgspec.json.encode(error_body(error))
    return Response(data, error.status, headers=dict(error.headers), media_type=JSON)


def _ortolan_error(error: OrtolanError) -> ApiError:
    status = next(status for cls, status in _STATUSES if isinstance(error, cls))
    headers: Mapping[str, str] = {}
    if isinstance(error, runtime.QueueFullError):
        headers = {
            "retry-after-ms": f"{max(1, round(error.retry_after_s * 1000))}",
            "retry-after": f"{max(1, math.ceil(error.retry_after_s))}",
        }
    elif status >= 500 and not isinstance(error, runtime.ServiceClosedError):
        headers = _NO_RETRY
    return ApiError(str(error), code=error.code, headers=headers, status=status)


def _validation_error(text: str) -> ApiError:
    """Split msgspec's `Expected ... - at `$.field[0]`` into a sentence and a field."""
    text = text.replace(" - at `key` in `$", " for a key - at `$")
    message, _, place = text.partition(" - at `$")
    param = place.rstrip("`").removeprefix(".") or None
    if "unknown field" in message:
        name = message.rpartition("`")[0].rpartition("`")[2]
        param = name if param is None else f"{param}.{name}"
        message = f"{param} is not supported. Leave it out"
    elif "enum value" in message:
        value = message.partition("enum value ")[2]
        message = f"{param} must not be {value}, which is not supported. Leave it out"
    elif param is not None:
        message = f"{param}: {message[:1].lower()}{message[1:]}"
    return ApiError(f"{message}.", code="invalid-body", param=param)
