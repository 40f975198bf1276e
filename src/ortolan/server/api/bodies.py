"""Fields that several bodies share, and the options that they become."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec

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


def listed(inputs: Any) -> list[Any]:
    """The single inputs: texts, or lists of token ids."""
    return [inputs] if isinstance(inputs, str) or isinstance(inputs[0], int) else inputs
