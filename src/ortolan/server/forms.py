"""Bodies of forms with files (multipart/form-data, RFC 7578), and the parts of JSON bodies."""

import re
from typing import Any

from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from ortolan.server.errors import ApiError

FORM = "multipart/form-data"

MAX_FIELDS = 32

MAX_PARTS = 100_000
"""Lists and objects of a JSON body. A million take a second, in which no other request is answered.
"""

# possessive and without a necessary end: it takes each byte once
_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)


def check_parts(data: bytes) -> None:
    """Check how many lists and objects a JSON body has, before it is decoded."""
    if _opened(data) > MAX_PARTS and _opened(_STRING.sub(b"", data)) > MAX_PARTS:
        raise ApiError(
            f"The body may have at most {MAX_PARTS} lists and objects. Send several.",
            code="invalid-json",
        )


def _opened(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


async def form_fields(data: bytes, content_type: bytes) -> dict[str, Any]:
    """Return the fields of a form: bytes of files, else text; a list where a name ends in `[]`."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data, "more_body": False}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", content_type)]}
    fields: dict[str, Any] = {}
    try:
        async with Request(scope, receive).form(
            max_files=1, max_fields=MAX_FIELDS, max_part_size=len(data)
        ) as form:
            for name, value in form.multi_items():
                content = await value.read() if isinstance(value, UploadFile) else value
                if name.endswith("[]"):
                    fields.setdefault(name, []).append(content)
                elif name in fields:
                    raise _refusal(f"{name!r:.40} occurs twice")
                else:
                    fields[name] = content
    except (MultiPartException, FormParserError, KeyError, ValueError) as error:
        raise _refusal(str(getattr(error, "message", error))[:200]) from error
    return fields


def _refusal(problem: str) -> ApiError:
    return ApiError(
        f"The body is not a valid form: {problem.rstrip('.')}. Send {FORM} with a boundary.",
        code="invalid-form",
    )
