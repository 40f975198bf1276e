"""Fields that several bodies share, and the options that they become."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import msgspec

from ortolan.runtime import Grammar, Sampling
from ortolan.runtime.errors import shown
from ortolan.server.errors import ApiError

__all__ = [
    "Body",
    "ChoicesFields",
    "JsonSchema",
    "ResponseFormat",
    "SamplingFields",
    "StreamOptions",
    "checked_limit",
    "grammar_of",
    "new_id",
    "options_of",
]

MAX_STOP = 16
"""Maximum number of stop texts."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A body. Unknown fields are errors: no option is ignored.

    These fields of OpenAI's interface change no answer here, so they are accepted.
    """

    model: str | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


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


class ChoicesFields(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Fields of bodies that ask for one or more choices.

    Gateways such as vllm-router write the literal fields into every body.
    """

    max_tokens: int | None = None
    n: int | None = None
    stream_options: StreamOptions | None = None
    skip_special_tokens: Literal[True] | None = None
    no_stop_trim: Literal[False] | None = None
    return_hidden_states: Literal[False] | None = None

    def __post_init__(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                status=400, message="stream_options needs stream=true.", param="stream_options"
            )

    @property
    def streams_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A named JSON schema."""

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Format of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


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

    Raises:
        ApiError: a field is invalid.
        SamplingError: a sampling option is out of range.
    """
    given = {name: value for name in _PARAMETERS if (value := getattr(body, name)) is not None}
    is_sampled = bool(given) or (choices or 1) > 1  # greedy choices would all be the same
    if is_sampled and "temperature" not in given and recommended.temperature == 0:
        given["temperature"] = 1.0
    sampling = replace(
        recommended,
        **given,
        logit_bias=_logit_bias(body.logit_bias or {}),
        seed=secrets.randbits(32) if body.seed is None else body.seed,
    )
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stop) > MAX_STOP:
        raise ApiError(
            status=400,
            message=f"stop must have at most {MAX_STOP} texts (got {len(stop)}).",
            param="stop",
        )
    return {
        "sampling": sampling,
        "stop": stop,
        "stop_tokens": body.stop_token_ids or [],
        "min_new_tokens": body.min_tokens or 0,
        "ignore_eos": bool(body.ignore_eos),
    }


def checked_limit(name: str, limit: int | None, *, least: int = 1) -> int | None:
    """Return the maximum number of new tokens, if it is valid.

    Raises:
        ApiError: it is too small.
    """
    if limit is not None and limit < least:
        raise ApiError(
            status=400, message=f"{name} must be at least {least} (got {limit}).", param=name
        )
    return limit


def grammar_of(form: ResponseFormat | None) -> Grammar | None:
    """The grammar of a response format.

    Raises:
        ApiError: there is no schema.
        GrammarError: the schema is invalid or unsupported.
        MissingExtraError: llguidance is not installed.
    """
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return Grammar.json_schema({"type": "object"})
    if form.json_schema is None or form.json_schema.schema is None:
        raise ApiError(
            status=400,
            message="response_format.json_schema.schema is missing.",
            param="response_format.json_schema.schema",
        )
    return Grammar.json_schema(form.json_schema.schema)


def new_id(prefix: str) -> str:
    """A random identifier."""
    return f"{prefix}{secrets.token_hex(12)}"


def _logit_bias(bias: Mapping[str, float]) -> dict[int, float]:
    wrong = [shown(token) for token in bias if not _TOKEN_ID.fullmatch(token)]
    if wrong:
        raise ApiError(
            status=400,
            message='logit_bias must have token ids as keys, such as {"42": -100} (got '
            f"{', '.join(wrong[:5])}).",
            param="logit_bias",
        )
    return {int(token): value for token, value in bias.items()}
