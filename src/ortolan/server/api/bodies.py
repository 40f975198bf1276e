"""Fields that several bodies share, and the options that they become."""

import asyncio
import re
import secrets
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ortolan.runtime import Grammar, Sampling
from ortolan.runtime.limits import MAX_SEED
from ortolan.server.errors import ApiError

C = TypeVar("C")

Limit = Annotated[int, msgspec.Meta(ge=-1)]
"""Maximum number of new tokens; clients send -1 for no limit."""

Inputs = str | Annotated[list[str | int | list[int]], msgspec.Meta(min_length=1)]
"""A text, token ids, or a list of either."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A body. Unknown fields are errors: no option is ignored.

    These fields of OpenAI's and vLLM's interfaces change no answer here, so they are accepted.
    """

    model: str | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    request_id: str | None = None
    priority: Literal[0] | None = None


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChunkOptions(StreamOptions, kw_only=True, forbid_unknown_fields=True):
    """Options of a stream of chunks."""

    continuous_usage_stats: bool | None = None


class SamplingFields(Body, kw_only=True, forbid_unknown_fields=True):
    """Sampling options by OpenAI's names, and those that vLLM and llama.cpp add."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None


class AllowedTools(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Functions among the tools."""

    tools: list[dict[str, Any]] | None = None
    mode: str | None = None


class ToolChoice(AllowedTools, kw_only=True, omit_defaults=True):
    """A function or several, as chat completions or responses name them."""

    type: Literal["function", "allowed_tools"]
    name: str | None = None
    function: dict[str, Any] | None = None
    allowed_tools: AllowedTools | None = None

    def __post_init__(self) -> None:
        if self.type == "allowed_tools":
            self.mode = self.mode or "auto"


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Format of an answer, as vLLM's clients ask for it: one of these."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None

    def __post_init__(self) -> None:
        if [self.json, self.regex, self.choice].count(None) != 2:
            raise ValueError("send one of json, regex and choice")


class ChoicesFields(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Fields of bodies that ask for one or more choices."""

    max_tokens: Limit | None = None
    n: int | None = None
    stream_options: ChunkOptions | None = None
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise ApiError("stream_options needs stream=true.", param="stream_options")


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A named JSON schema."""

    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Format of an answer; `schema` is that of a `json_object`, as llama.cpp's clients send it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.type == "json_object":
            self.schema = self.schema or {"type": "object"}
        elif self.type == "text":
            self.schema = None
        elif self.json_schema is None or self.json_schema.schema is None:
            raise ValueError("json_schema.schema is missing")
        else:
            self.schema = self.json_schema.schema


_PARAMETERS = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


def options_of(
    body: SamplingFields, recommended: Sampling, *, limit: int | None, choices: int | None = None
) -> dict[str, Any]:
    """Options of a request. What the body leaves out is what the model recommends.

    If the model recommends nothing, answers are greedy, unless the body sets a sampling option or
    asks for several choices: then the temperature defaults to 1, as in OpenAI's interface.
    """
    given = {name: value for name in _PARAMETERS if (value := getattr(body, name)) is not None}
    is_sampled = bool(given) or (choices or 1) > 1  # greedy choices would all be the same
    if is_sampled and "temperature" not in given and recommended.temperature == 0:
        given["temperature"] = 1.0
    if given.get("top_k") == -1:  # as vLLM's clients turn it off
        given["top_k"] = 0
    seed = secrets.randbits(32) if body.seed is None else body.seed & MAX_SEED
    return {
        "sampling": replace(recommended, **given, logit_bias=body.logit_bias or {}, seed=seed),
        "stop": [body.stop] if isinstance(body.stop, str) else body.stop or [],
        "stop_tokens": body.stop_token_ids or [],
        "min_new_tokens": body.min_tokens or 0,
        "max_new_tokens": None if limit == -1 else limit,
        "ignore_eos": bool(body.ignore_eos),
    }


def listed(inputs: Any) -> list[Any]:
    """The single inputs: texts, or lists of token ids."""
    return [inputs] if isinstance(inputs, str) or isinstance(inputs[0], int) else inputs


async def grammar_of(
    schema: dict[str, Any] | None, outputs: StructuredOutputs | None = None
) -> Grammar | None:
    """The grammar of a JSON schema or of vLLM's structured outputs, checked in a thread."""
    if outputs is not None and outputs.json is None:
        pattern = outputs.regex or "|".join(map(re.escape, outputs.choice or ()))
        return await asyncio.to_thread(Grammar.regex, pattern)
    json = schema if outputs is None else outputs.json
    return None if json is None else await asyncio.to_thread(Grammar.json_schema, json)


def new_id(prefix: str) -> str:
    """A random identifier."""
    return f"{prefix}{secrets.token_hex(12)}"
