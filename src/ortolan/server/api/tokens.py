"""`/tokenize`, `/detokenize` and `/tokenizer_info`, as clients of llama.cpp and vLLM send them."""

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

from ortolan.runtime import TokenizerError
from ortolan.runtime.errors import ChatTemplateError
from ortolan.server.api.bodies import Body
from ortolan.server.call import Call
from ortolan.server.errors import ApiError
from ortolan.server.models import ServedModel


class TokenizeBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A text, or messages to render with the chat template.

    Attributes:
        content: a text without special tokens, unless `add_special` asks for them.
        prompt: a text with special tokens, unless `add_special_tokens` is false.
    """

    content: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special: bool = False
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if [self.content, self.prompt, self.messages].count(None) != 2:
            raise ApiError("Send one of content, prompt and messages.", param="content")


class DetokenizeBody(Body, kw_only=True, forbid_unknown_fields=True):
    """Token ids."""

    tokens: list[int]


class Tokens(msgspec.Struct, kw_only=True):
    """Token ids of a text."""

    tokens: list[int]
    count: int
    max_model_len: int


class Content(msgspec.Struct, kw_only=True):
    """Text of token ids, by its name in llama.cpp and in vLLM."""

    content: str
    prompt: str


async def tokenize(call: Call, body: TokenizeBody) -> Tokens:
    """Turn a text or messages into token ids."""
    served = await call.model(body.model)
    if body.messages is not None:
        served.expect("decoder", what="chat")
        prompt = await asyncio.to_thread(
            served.model.chat_template.prompt,
            body.messages,
            tools=body.tools,
            variables=body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        )
        ids = prompt.ids
    else:
        text = body.content if body.prompt is None else body.prompt
        is_special = body.add_special if body.prompt is None else True
        if body.add_special_tokens is not None:
            is_special = body.add_special_tokens
        encode = _tokenizer(served).encode
        ids = await asyncio.to_thread(encode, text, add_special_tokens=is_special)
    return Tokens(tokens=ids, count=len(ids), max_model_len=served.model.manifest.context_length)


async def detokenize(call: Call, body: DetokenizeBody) -> Content:
    """Turn token ids into text."""
    served = await call.model(body.model)
    decode = _tokenizer(served).decode
    text = await asyncio.to_thread(decode, body.tokens, skip_special_tokens=False)
    return Content(content=text, prompt=text)


async def tokenizer_info(call: Call) -> dict[str, Any]:
    """Describe the tokenizer of the only model, or of the one in the query, `?model=NAME`."""
    served = await call.model(call.request.query_params.get("model"))
    tokenizer, manifest = _tokenizer(served), served.model.manifest

    def text(token: int | None) -> str | None:
        ids = [] if token is None else [token]
        return tokenizer.decode(ids, skip_special_tokens=False) or None

    template = None
    if served.model.kind == "decoder":
        with suppress(ChatTemplateError):
            template = served.model.chat_template.source
    return {
        "model": served.name,
        "vocab_size": manifest.vocab_size,
        "model_max_length": manifest.context_length,
        "bos_token": text(manifest.tokens.bos),
        "eos_token": text(next(iter(manifest.tokens.eos), None)),
        "pad_token": text(manifest.tokens.pad),
        "chat_template": template,
    }


def _tokenizer(served: ServedModel) -> Any:
    if served.model.tokenizer is None:
        raise TokenizerError(f"The model {served.name!r} has no tokenizer.")
    return served.model.tokenizer
