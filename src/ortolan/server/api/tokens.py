"""`/tokenize` and `/detokenize`."""

from typing import Any

import msgspec

from ortolan.runtime import TokenizerError
from ortolan.server.api.bodies import Body
from ortolan.server.call import Call
from ortolan.server.endpoints import Answer, Endpoint
from ortolan.server.errors import ApiError

__all__ = ["ENDPOINTS"]


class TokenizeBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A text, or messages to render with the chat template."""

    content: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special: bool = False


class DetokenizeBody(Body, kw_only=True, forbid_unknown_fields=True):
    """Token ids."""

    tokens: list[int]


class Tokens(msgspec.Struct, kw_only=True):
    """Token ids of a text."""

    tokens: list[int]
    count: int
    max_model_len: int


class Content(msgspec.Struct, kw_only=True):
    """Text of token ids."""

    content: str


async def tokenize(call: Call, body: TokenizeBody) -> Answer:
    """Turn a text or messages into token ids."""
    served = await call.model(body.model)
    if (body.content is None) == (body.messages is None):
        raise ApiError(status=400, message="Send either content or messages.", param="content")
    if body.messages is not None:
        served.expect("decoder", what="chat")
        prompt = served.model.chat_template.prompt(body.messages, tools=body.tools)
        ids = prompt.ids
    else:
        ids = _tokenizer(served).encode(body.content, add_special_tokens=body.add_special)
    return Tokens(tokens=ids, count=len(ids), max_model_len=served.model.manifest.context_length)


async def detokenize(call: Call, body: DetokenizeBody) -> Answer:
    """Turn token ids into text."""
    served = await call.model(body.model)
    return Content(content=_tokenizer(served).decode(body.tokens, skip_special_tokens=False))


def _tokenizer(served: Any) -> Any:
    if served.model.tokenizer is None:
        raise TokenizerError(f"The model {served.name!r} has no tokenizer.")
    return served.model.tokenizer


ENDPOINTS = [
    Endpoint(
        method="POST",
        path="/tokenize",
        handler=tokenize,
        body=TokenizeBody,
        answer=Tokens,
        summary="Turn a text or messages into token ids.",
    ),
    Endpoint(
        method="POST",
        path="/detokenize",
        handler=detokenize,
        body=DetokenizeBody,
        answer=Content,
        summary="Turn token ids into text.",
    ),
]
