"""Bodies that a server accepts: required fields, and groups of optional ones that go together."""

from random import Random
from typing import Any

__all__ = ["TOOL", "valid_body"]

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]},
    },
}
FLAT_TOOL = {"type": "function", **TOOL["function"]}
SCHEMA = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}
MESSAGES: tuple[Any, ...] = (
    [{"role": "user", "content": "Hi."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}],
    [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
)
DECODERS = ("tiny", "tiny", "adapter")

Group = dict[str, tuple[Any, ...]]
"""Fields that go together, with values to choose from."""

SAMPLING: tuple[Group, ...] = (
    {"temperature": (0, 0.7, 1), "seed": (1, 2**31)},
    {"top_p": (0.1, 1), "top_k": (1, 20)},
    {"min_p": (0.05,), "repetition_penalty": (1.1,)},
    {"presence_penalty": (-1, 0.5), "frequency_penalty": (0.5,)},
    {"logit_bias": ({"5": -100}, {})},
    {"stop": ("a", ["a", "bc"]), "stop_token_ids": ([5],)},
    {"min_tokens": (1,), "ignore_eos": (True, False)},
    {"user": ("u",), "metadata": ({"a": "b"},)},
)
CHOICES: tuple[Group, ...] = (
    *SAMPLING,
    {"n": (1, 2)},
    {"stream": (True,), "stream_options": ({"include_usage": True}, {})},
    {"stream": (True, False)},
)
VALID: dict[str, tuple[Group, tuple[Group, ...]]] = {
    "/v1/chat/completions": (
        {"model": DECODERS, "messages": MESSAGES, "max_tokens": (1, 4, 12)},
        (
            *CHOICES,
            {"tools": ([TOOL],), "tool_choice": ("auto", "none")},
            {"tools": ([TOOL],), "parallel_tool_calls": (True, False)},
            {"response_format": ({"type": "json_object"}, {"type": "text"})},
            {"logprobs": (True,), "top_logprobs": (0, 2)},
        ),
    ),
    "/v1/completions": (
        {
            "model": DECODERS,
            "prompt": ("abc", [1, 2, 3], ["a", "b"], [[1], [2]]),
            "max_tokens": (1, 4, 12),
        },
        (*CHOICES, {"logprobs": (0, 2)}, {"echo": (True, False)}),
    ),
    "/v1/responses": (
        {
            "model": DECODERS,
            "input": ("abc", [{"role": "user", "content": "Hi."}]),
            "max_output_tokens": (1, 4, 12),
        },
        (
            *SAMPLING,
            {"stream": (True, False)},
            {"store": (True, False), "instructions": ("Be brief.",)},
            {"tools": ([FLAT_TOOL],), "tool_choice": ("auto", "none")},
            {"text": ({"format": {"type": "json_object"}}, {"format": {"type": "text"}})},
            {
                "text": (
                    {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}},
                    {},
                )
            },
            {"include": (["message.output_text.logprobs"],), "top_logprobs": (2,)},
        ),
    ),
    "/v1/responses/compact": ({"model": ("tiny",), "input": ("abc",)}, ()),
    "/v1/embeddings": (
        {
            "model": ("embedder", "embedder", "prompted"),
            "input": ("a b", ["a", "b c"], [2, 4, 3], [[2, 4, 3], [2, 5, 3]]),
        },
        (
            {"encoding_format": ("float", "base64")},
            {"truncate": (True, False)},
            {"model": ("prompted",), "input": ("a",), "prompt_name": ("query",)},
        ),
    ),
    "/v1/rerank": (
        {
            "model": ("embedder", "prompted", "pairs"),
            "query": ("a b",),
            "documents": (["a", "b c", "d e f"], [{"text": "a"}]),
        },
        ({"top_n": (1, 2, 10)}, {"return_documents": (True, False)}),
    ),
    "/tokenize": (
        {"model": ("tiny", "embedder"), "content": ("a b",)},
        ({"add_special": (True, False)},),
    ),
    "/detokenize": ({"model": ("tiny",), "tokens": ([1, 2, 3],)}, ()),
}
"""By path: required fields, and optional groups."""

VALID |= dict.fromkeys(("/rerank", "/v2/rerank"), VALID["/v1/rerank"])


def valid_body(path: str, random: Random) -> dict[str, Any]:
    """A body that the server accepts."""
    required, optional = VALID[path]
    groups = random.sample(optional, min(len(optional), random.choice([0, 1, 2, 3])))
    body: dict[str, Any] = {}
    for group in (required, *groups):
        if len(group.keys() & body.keys() - {"model", "input", "stream"}) == 0:
            body |= {name: random.choice(values) for name, values in group.items()}
    if "stream_options" in body:
        body["stream"] = True
    return body
