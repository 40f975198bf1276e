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

_STATUSES: tuple[tuple[type[OrtolanError], int, str], ...] = (
    (runtime.QueueFullError, 429, "rate_limit_error"),
    (runtime.ServiceClosedError, 503, "server_error"),
    (runtime.ServiceError, 500, "server_error"),
    (runtime.MissingExtraError, 501, "server_error"),
    (runtime.ChatTemplateError, 400, "invalid_request_error"),
    (runtime.BundleError, 503, "server_error"),
    (runtime.DeviceError, 503, "server_error"),
    (runtime.InputError, 400, "invalid_request_error"),
    (runtime.MemoryPlanError, 400, "invalid_request_error"),
    (runtime.NumericError, 500, "server_error"),
)
"""Status and type of each error; the first class that fits applies."""

_IS_TRANSIENT = (runtime.QueueFullError, runtime.ServiceClosedError)


@dataclass(eq=False)
class ApiError(Exception):
    """An error to send to the client.

    Attributes:
        message: what is wrong and what to do.
        status: HTTP status.
        type: OpenAI's class of errors.
        code: stable identifier for programs.
        param: field of the body that is wrong.
        headers: further headers of the response.
    """

    message: str
    _: KW_ONLY
    status: int = 400
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


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
            return ApiError(f"The body is not valid JSON: {_one_line(error)}.", code="invalid-json")
    return ApiError(
        f"{type(error).__name__} in the server, a bug in Ortolan. See its log.",
        type="server_error",
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
    status, kind = next(
        ((status, kind) for cls, status, kind in _STATUSES if isinstance(error, cls)),
        (500, "server_error"),
    )
    headers: Mapping[str, str] = {}
    if isinstance(error, runtime.QueueFullError):
        headers = {
            "retry-after-ms": f"{max(1, round(error.retry_after_s * 1000))}",
            "retry-after": f"{max(1, math.ceil(error.retry_after_s))}",
        }
    elif status >= 500 and not isinstance(error, _IS_TRANSIENT):
        headers = _NO_RETRY
    return ApiError(str(error), type=kind, code=error.code, headers=headers, status=status)


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


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
