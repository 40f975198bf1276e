"""How models write what is no plain text: reasoning and calls of tools, as data.

Which format a model has is seen from its chat template, which shows the model its own earlier
calls in the same format.
"""

from dataclasses import dataclass

from ortolan.runtime.chat.call_bodies import (
    Body,
    json_calls,
    named_calls,
    pair_calls,
    python_calls,
    xml_calls,
)

__all__ = ["CallFormat", "Format", "Reasoning", "format_of"]


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text between these two is reasoning."""

    open: str
    close: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """How calls are written.

    Attributes:
        mark: text of a template whose model writes them so.
        open: what they begin with; empty where only `bare` says it.
        close: what they end with; empty for the end of the reply or the next `open`.
        body: reads what is between the two.
        bare: an answer that begins so is a call as a whole, without `open`.
        around: texts that mean nothing further.
        inside: special tokens of the body.
    """

    mark: str
    body: Body
    open: str = ""
    close: str = ""
    bare: str = ""
    around: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """The format of one model."""

    reasoning: Reasoning | None = None
    calls: CallFormat | None = None

    @property
    def markers(self) -> frozenset[str]:
        """Every text with a meaning, some of which are special tokens."""
        found: list[str] = []
        if self.reasoning is not None:
            found += [self.reasoning.open, self.reasoning.close]
        if self.calls is not None:
            found += [self.calls.open, self.calls.close, *self.calls.around, *self.calls.inside]
        return frozenset(filter(None, found))


REASONING = (
    Reasoning("<think>", "</think>"),  # DeepSeek R1, Qwen 3, SmolLM 3, Granite 3.3
    Reasoning("[THINK]", "[/THINK]"),  # Magistral
    Reasoning("<|START_THINKING|>", "<|END_THINKING|>"),  # Command R7B and A
    Reasoning("<seed:think>", "</seed:think>"),  # Seed-OSS
)

CALLS = (
    CallFormat(mark="<function=", open="<tool_call>", close="</tool_call>", body=xml_calls),
    CallFormat(mark="<arg_key>", open="<tool_call>", close="</tool_call>", body=pair_calls),
    CallFormat(mark="<tool_call>", open="<tool_call>", close="</tool_call>", body=json_calls),
    CallFormat(  # Mistral from tekken v11 on
        mark="[ARGS]", open="[TOOL_CALLS]", body=named_calls, inside=("[ARGS]", "[CALL_ID]")
    ),
    CallFormat(mark="[TOOL_CALLS]", open="[TOOL_CALLS]", body=json_calls),
    CallFormat(
        mark="<|START_ACTION|>", open="<|START_ACTION|>", close="<|END_ACTION|>", body=json_calls
    ),
    CallFormat(
        mark="<｜tool▁call▁begin｜>",
        open="<｜tool▁call▁begin｜>",
        close="<｜tool▁call▁end｜>",
        body=named_calls,
        around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        inside=("<｜tool▁sep｜>",),
    ),
    CallFormat(
        mark="<|tool_call_start|>",
        open="<|tool_call_start|>",
        close="<|tool_call_end|>",
        body=python_calls,
    ),
    CallFormat(
        mark="<function_calls>",
        open="<function_calls>",
        close="</function_calls>",
        body=python_calls,
    ),
    CallFormat(  # Phi 4 mini
        mark="<|/tool_call|>", open="<|tool_call|>", close="<|/tool_call|>", body=json_calls
    ),
    CallFormat(mark="<|tool_call|>", open="<|tool_call|>", body=json_calls),  # Granite 3
    CallFormat(mark="params_name1=", bare="[", body=python_calls),  # Llama 3.2 and 4
    CallFormat(
        mark="dictionary of argument name and its value",  # Llama 3.1 and 3.2
        open="<|python_tag|>",
        bare="{",
        body=json_calls,
    ),
)
"""The first whose mark a template has; what another one contains stands after it."""


def format_of(source: str, *, with_tools: bool) -> Format:
    """What a model writes whose chat template has some source.

    Args:
        source: of the template.
        with_tools: whether it was given tools; without any, calls are text.
    """
    reasoning = next((each for each in REASONING if each.close in source), None)
    calls = next((each for each in CALLS if each.mark in source), None) if with_tools else None
    return Format(reasoning, calls)
