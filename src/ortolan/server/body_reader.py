"""`BodyReader`: reads bodies, JSON or forms with files, into structures."""

import asyncio
import re
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec
from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from ortolan.runtime.errors import shown
from ortolan.server.errors import JSON, ApiError
from ortolan.server.settings import Settings

FORM = "multipart/form-data"

MAX_FIELDS = 32
"""Maximum number of fields of a form."""

MAX_PARTS = 100_000
"""Lists and objects of a JSON body. A million take a second, in which no other request is answered.
"""

MAX_EXACT = 2**53
"""Integers below it are exact as floats."""

# possessive and without a necessary end: it takes each byte once
_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)

_CHANGED = frozenset({float, list, dict})
"""Types of values to look into; others, such as token ids, stay."""

_OFF: dict[str, list[Any]] = {
    name: values
    for names, *values in (
        ("disable_additional_properties disable_any_whitespace disable_fallback echo", False),
        ("include_stop_str_in_output json_object late_chunking no_stop_trim", False),
        ("post_sampling_probs raw_scores return_hidden_states return_progress", False),
        ("return_token_ids return_tokens_as_token_ids store timings_per_token", False),
        ("use_beam_search", False),
        ("add_generation_prompt add_special_tokens detokenize include_reasoning", True),
        ("separate_reasoning skip_special_tokens spaces_between_special_tokens", True),
        ("stream_reasoning", True),
        ("dry_multiplier dynatemp_range epsilon_cutoff eta_cutoff min_new_tokens mirostat", 0),
        ("n_probs top_a xtc_probability", 0),
        ("best_of length_penalty repeat_penalty tfs_z typ_p typical_p", 1),
        ("bad_words functions logits_processors", []),
        ("chat_template_content_format", "auto"),
        ("embed_dtype", "float32"),
        ("endianness", "native"),
        ("function_call", "none", "auto"),
        ("grammar", ""),
        ("response_format", {"type": "text"}),
    )
    for name in names.split()
}
"""Values of unsupported options that turn them off, as in vLLM, SGLang and llama.cpp."""


class BodyReader:
    """Reads bodies of a media type into a structure, within the limits of the settings.

    Unknown fields are errors, unless their value is null or turns the option off: clients of other
    servers write all defaults into every body. Integers may be written as 4.0.
    """

    def __init__(
        self, structure: type[msgspec.Struct], media_type: str, settings: Settings
    ) -> None:
        self._structure = structure
        self._decoder = msgspec.json.Decoder(structure)
        self._media_type = media_type
        self._timeout_s = settings.body_timeout_s
        is_form = media_type == FORM
        self._max_bytes = settings.max_form_bytes if is_form else settings.max_body_bytes

    async def receive(self, request: Request) -> bytes:
        """Wait for the bytes of a body."""
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.strip().lower() != "identity":
            raise ApiError(
                f"Send the body without Content-Encoding (got {shown(encoding)}).",
                code="content-encoding",
                headers={"accept-encoding": "identity"},
                status=415,
            )
        media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if media_type != self._media_type:
            what = "JSON" if self._media_type == JSON else "a form"
            raise ApiError(
                f"Send {what} with the header Content-Type: {self._media_type} "
                f"(got {shown(media_type)}).",
                code="media-type",
                status=415,
            )
        too_large = ApiError(
            f"The body must have at most {self._max_bytes} bytes.",
            code="body-size",
            headers={"connection": "close"},
            status=413,
        )
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._max_bytes:
            raise too_large
        data = bytearray()
        try:
            async with asyncio.timeout(self._timeout_s):
                async for part in request.stream():
                    data += part
                    if len(data) > self._max_bytes:
                        raise too_large
        except TimeoutError:
            raise ApiError(
                f"The body did not arrive within {self._timeout_s:g} s.",
                code="body-timeout",
                headers={"connection": "close"},
                status=408,
            ) from None
        return bytes(data)

    async def decode(self, data: bytes, content_type: str) -> Any:
        """Decode the bytes of a body."""
        if self._media_type == FORM:
            fields = await _form_fields(data, content_type.encode("latin-1"))
            return msgspec.convert(fields, self._structure, strict=False)
        if _opened(data) > MAX_PARTS and _opened(_STRING.sub(b"", data)) > MAX_PARTS:
            raise ApiError(
                f"The body may have at most {MAX_PARTS} lists and objects. Send several.",
                code="invalid-json",
            )
        try:
            return self._decoder.decode(data)
        except msgspec.ValidationError as error:
            try:
                fields = _without_off(msgspec.json.decode(data), self._structure)
            except msgspec.ValidationError:  # numbers out of range; the first error says where
                raise error from None
        except UnicodeDecodeError as error:
            raise msgspec.DecodeError(f"{error}") from error
        return self._decoder.decode(msgspec.json.encode(fields))


def _opened(data: bytes) -> int:
    """Number of lists and objects, and of their brackets in texts."""
    return data.count(b"[") + data.count(b"{")


def _without_off(value: Any, kind: Any) -> Any:
    """Leave out unknown fields that are off, and write integral floats as integers."""
    if isinstance(value, float) and value.is_integer() and abs(value) < MAX_EXACT:
        return int(value)
    if isinstance(value, list):
        return [_without_off(item, kind) if type(item) in _CHANGED else item for item in value]
    known = _fields(kind)
    if not isinstance(value, dict) or not known:
        return value
    return {
        name: _without_off(item, known.get(name))
        for name, item in value.items()
        if name in known or (item is not None and item not in _OFF.get(name, ()))
    }


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """Types of the fields of all structures among the alternatives of a type, also in lists."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return get_type_hints(kind)
    return {name: of for inner in get_args(kind) for name, of in _fields(inner).items()}


async def _form_fields(data: bytes, content_type: bytes) -> dict[str, Any]:
    """Return the fields of a form: bytes of files, else text; a list where a name ends in `[]`.

    Source: https://www.rfc-editor.org/rfc/rfc7578
    """

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
                    raise ValueError(f"{name!r:.40} occurs twice")
                else:
                    fields[name] = content
    except (MultiPartException, FormParserError, KeyError, ValueError) as error:
        problem = str(getattr(error, "message", error))[:200].rstrip(".")
        raise ApiError(
            f"The body is not a valid form: {problem}. Send {FORM} with a boundary.",
            code="invalid-form",
        ) from error
    return fields
