"""Fields that several bodies share, and the options that they become."""

import asyncio
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ortolan.runtime import Grammar, Sampling
from ortolan.runtime.errors import ContextLengthError, shown
from ortolan.runtime.limits import MAX_SEED
from ortolan.server.errors import ApiError

C = TypeVar("C")


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
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Format of an answer, as vLLM's clients ask for it: one of these."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None


class ChoicesFields(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Fields of bodies that ask for one or more choices.

    Clients of vLLM, and gateways such as vllm-router, write defaults into every body. Those of
    options that are not supported are accepted; other values are errors.
    """

    max_tokens: int | None = None
    n: int | None = None
    stream_options: ChunkOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    include_stop_str_in_output: Literal[False] | None = None
    spaces_between_special_tokens: Literal[True] | None = None
    use_beam_search: Literal[False] | None = None
    length_penalty: Annotated[float, msgspec.Meta(ge=1, le=1)] | None = None
    skip_special_tokens: Literal[True] | None = None
    no_stop_trim: Literal[False] | None = None
    return_hidden_states: Literal[False] | None = None

    def __post_init__(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise ApiError("stream_options needs stream=true.", param="stream_options")

    @property
    def streams_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def streams_counts(self) -> bool:
        """Whether every event has the usage so far."""
        return self.streams_usage and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )


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


_TOKEN_ID = re.compile("[0-9]{1,10}")

_PARAMETERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


def options_of(
    body: SamplingFields, recommended: Sampling, *, choices: int | None = None
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
    sampling = replace(
        recommended,
        **given,
        logit_bias=_logit_bias(body.logit_bias or {}),
        seed=secrets.randbits(32) if body.seed is None else body.seed & MAX_SEED,
    )
    return {
        "sampling": sampling,
        "stop": [body.stop] if isinstance(body.stop, str) else body.stop or [],
        "stop_tokens": body.stop_token_ids or [],
        "min_new_tokens": body.min_tokens or 0,
        "ignore_eos": bool(body.ignore_eos),
    }


def checked_limit(name: str, limit: int | None, *, least: int = 1) -> int | None:
    """Maximum number of new tokens; `None` for no limit, as which clients send -1 too."""
    if limit is None or limit == -1:
        return None
    if limit < least:
        raise ApiError(f"{name} must be at least {least} (got {limit}).", param=name)
    return limit


def allowed_tools(choice: Mapping[str, Any], names: Collection[str]) -> tuple[list[str], str]:
    """The names and the mode of a `tool_choice` of the type `allowed_tools`."""
    inner = choice.get("allowed_tools", choice)
    inner = inner if isinstance(inner, dict) else {}
    tools = [tool for tool in inner.get("tools") or () if isinstance(tool, dict)]
    functions = [tool.get("function", tool) for tool in tools if tool.get("type") == "function"]
    allowed = [str(f.get("name")) for f in functions if isinstance(f, dict)]
    missing = [name for name in allowed if name not in names]
    if not allowed or missing:
        raise ApiError(
            "tool_choice must list functions that are among tools (got "
            f"{', '.join(name[:40] for name in missing) or 'none'}).",
            param="tool_choice",
        )
    return allowed, str(inner.get("mode", "auto"))


def fitted(submit: Callable[[int | None], list[C]], limit: int | None) -> list[C]:
    """Submit with a limit of new tokens; one that exceeds the context becomes the context's own.

    Clients send a fixed limit with any prompt, and the finish reason tells them the difference.
    """
    try:
        return submit(limit)
    except ContextLengthError:
        if not limit:
            raise
    return submit(None)


async def grammar_of(
    form: ResponseFormat | None, outputs: StructuredOutputs | None = None
) -> Grammar | None:
    """The grammar of a response format or of vLLM's structured outputs, checked in a thread."""
    if outputs is not None:
        has_form = form is not None and form.type != "text"
        return await asyncio.to_thread(_structured, outputs, has_form=has_form)
    if form is None or form.type == "text":
        return None
    return await asyncio.to_thread(_formatted, form)


def _formatted(form: ResponseFormat) -> Grammar:
    if form.type == "json_object":
        return Grammar.json_schema(form.schema or {"type": "object"})
    if form.json_schema is None or form.json_schema.schema is None:
        raise ApiError(
            "response_format.json_schema.schema is missing.",
            param="response_format.json_schema.schema",
        )
    return Grammar.json_schema(form.json_schema.schema)


def _structured(outputs: StructuredOutputs, *, has_form: bool) -> Grammar:
    if has_form + sum(getattr(outputs, f) is not None for f in outputs.__struct_fields__) != 1:
        raise ApiError(
            "structured_outputs must have one of json, regex and choice, without response_format.",
            param="structured_outputs",
        )
    if outputs.json is not None:
        return Grammar.json_schema(outputs.json)
    return Grammar.regex(outputs.regex or "|".join(map(re.escape, outputs.choice or ())))


def new_id(prefix: str) -> str:
    """A random identifier."""
    return f"{prefix}{secrets.token_hex(12)}"


def _logit_bias(bias: Mapping[str, float]) -> dict[int, float]:
    wrong = [shown(token) for token in bias if not _TOKEN_ID.fullmatch(token)]
    if wrong:
        raise ApiError(
            'logit_bias must have token ids as keys, such as {"42": -100} (got '
            f"{', '.join(wrong[:5])}).",
            param="logit_bias",
        )
    return {int(token): value for token, value in bias.items()}
