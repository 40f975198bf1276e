"""Reply formats: how models write reasoning and tool calls.

The format is recognized by the chat template, which shows the model its own earlier calls.
"""

import re
from dataclasses import dataclass
from functools import cache

from ortolan.runtime.chat.call_syntax import (
    Reader,
    Schemas,
    ToolCall,
    fenced_calls,
    headed,
    json_calls,
    pair_calls,
    python_calls,
    xml_calls,
)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Markers around reasoning."""

    open: str
    close: str
    mark: str = ""  # template text that identifies this format; `close` if empty
    around: tuple[str, ...] = ()  # markers outside of reasoning that carry no text
    ends: tuple[str, ...] = ()  # special tokens that end an answer, whatever the template shows


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """Markers around tool calls, and the reader of what is between them.

    Without `close`, a call ends with the reply or the next `open`. Otherwise a call without it is
    none, unless the reply ends in its place, as with `Reasoning.ends`.
    """

    reader: Reader
    mark: str = ""  # template text that identifies this format; `open` if empty
    open: str = ""  # empty if only `bare` identifies a call
    others: tuple[str, ...] = ()  # alternatives to `open`
    close: str = ""
    bare: str = ""  # an answer that starts with this text is a call, without `open`
    begun: str = ""  # end of the prompt that belongs to the reply
    content: tuple[str, ...] = ()  # markers before text that is not a call
    around: tuple[str, ...] = ()  # markers around calls that carry no text
    inside: tuple[str, ...] = ()  # special tokens within a call

    @property
    def opens(self) -> tuple[str, ...]:
        """Markers that may begin a call."""
        return tuple(filter(None, (self.open, *self.others)))


NO_REASONING = Reasoning("", "")


def _no_call(text: str, schemas: Schemas) -> list[ToolCall]:
    raise ValueError("no call")


NO_CALLS = CallFormat(reader=_no_call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Reply format of one model: `begun` ends the prompt, `ignored` markers carry no text."""

    reasoning: Reasoning = NO_REASONING
    calls: CallFormat = NO_CALLS
    begun: str = ""
    ignored: tuple[str, ...] = ()

    @property
    def markers(self) -> frozenset[str]:
        """All markers; some are special tokens."""
        reasoning, calls = self.reasoning, self.calls
        texts = (
            *(self.begun, *self.ignored, *reasoning.ends, reasoning.open, reasoning.close),
            *(*calls.opens, calls.close, *calls.around, *calls.inside),
        )
        return frozenset(filter(None, texts))


# reasoning formats; the first whose mark is in the template applies
REASONING = (
    Reasoning(  # gpt-oss
        "<|channel|>analysis<|message|>",
        "<|end|>",
        mark="<|channel|>analysis",
        around=(
            "<|start|>assistant",
            "<|channel|>commentary<|message|>",
            "<|channel|>final<|message|>",
            "<|channel|>final <|constrain|>json<|message|>",
            "<|end|>",
            "<|return|>",
        ),
        ends=("<|return|>", "<|call|>"),
    ),
    Reasoning("<think>", "</think>"),  # DeepSeek R1, Qwen 3, SmolLM 3, Granite 3.3
    Reasoning("[THINK]", "[/THINK]"),  # Magistral
    Reasoning("<|START_THINKING|>", "<|END_THINKING|>"),  # Command R7B and A
    Reasoning("<seed:think>", "</seed:think>"),  # Seed-OSS
)

_NAME = r"(?P<name>[\w.:/-]+)"

# call formats; the first whose mark is in the template applies. Specific marks come first.
CALLS = (
    CallFormat(  # gpt-oss
        mark="<|channel|>commentary",
        open="<|channel|>commentary to=functions.",
        others=("<|channel|>analysis to=functions.", "<|start|>assistant to=functions."),
        bare="to=functions.",
        close="<|call|>",
        reader=headed(
            r"(?:to=functions\.)?(?P<name>[\w.:/-]+)\s*(?:<\|channel\|>\w+\s*)?"
            r"(?:<\|constrain\|>)?(?:\w+\s*)?<\|message\|>"
        ),
        inside=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"),
    ),
    CallFormat(open="<seed:tool_call>", close="</seed:tool_call>", reader=xml_calls),
    CallFormat(  # Qwen 3 Coder, Nemotron 3
        mark="<parameter=", open="<tool_call>", close="</tool_call>", reader=xml_calls
    ),
    CallFormat(  # Functionary 3.1
        open="<function=", close="</function>", reader=headed(rf"{_NAME}>")
    ),
    CallFormat(mark="<arg_key>", open="<tool_call>", close="</tool_call>", reader=pair_calls),
    CallFormat(  # Apriel, Hunyuan, MiniMax M1
        mark="</tool_calls>", open="<tool_calls>", close="</tool_calls>", reader=json_calls
    ),
    CallFormat(open="<tool_call>", close="</tool_call>", reader=json_calls),
    CallFormat(open="<TOOLCALL>", close="</TOOLCALL>", reader=json_calls),
    CallFormat(  # Mistral from tekken v11 on
        mark="[ARGS]",
        open="[TOOL_CALLS]",
        reader=headed(rf"{_NAME}\s*(?:\[CALL_ID\]\s*(?P<id>\w+)\s*)?\[ARGS\]"),
        inside=("[ARGS]", "[CALL_ID]"),
    ),
    CallFormat(open="[TOOL_CALLS]", reader=json_calls),
    CallFormat(open="<|START_ACTION|>", close="<|END_ACTION|>", reader=json_calls),
    CallFormat(mark="directly-answer", open="Action:", reader=fenced_calls),  # Command R and R+
    CallFormat(
        open="<｜tool▁call▁begin｜>",
        close="<｜tool▁call▁end｜>",
        reader=headed(rf"(?:function<｜tool▁sep｜>)?{_NAME}\s*(?:<｜tool▁sep｜>\s*)?(?:```json)?"),
        around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        inside=("<｜tool▁sep｜>",),
    ),
    CallFormat(  # Kimi K2, whose call ids contain the tool name
        mark="tool_declare",
        open="<|tool_call_begin|>",
        close="<|tool_call_end|>",
        reader=headed(
            r"(?P<id>(?:functions\.)?(?P<name>[\w./-]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>"
        ),
        around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        inside=("<|tool_call_argument_begin|>",),
    ),
    CallFormat(  # LFM 2, whose older templates show no calls
        mark="List of tools: ",
        open="<|tool_call_start|>",
        close="<|tool_call_end|>",
        reader=python_calls,
    ),
    CallFormat(open="<function_calls>", close="</function_calls>", reader=python_calls),
    CallFormat(  # Phi 4 mini
        mark="<|/tool_call|>", open="<|tool_call|>", close="<|/tool_call|>", reader=json_calls
    ),
    CallFormat(open="<|tool_call|>", reader=json_calls),  # Granite 3
    CallFormat(  # Functionary 3.2
        mark=">>>all", open=">>>", reader=headed(_NAME), begun=">>>", content=(">>>all\n",)
    ),
    CallFormat(mark="params_name1=", bare="[", reader=python_calls),  # Llama 3.2 and 4
    CallFormat(
        mark="dictionary of argument name and its value",  # Llama 3.1 and 3.2
        open="<|python_tag|>",
        bare="{",
        reader=json_calls,
    ),
)


@cache
def any_of(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Regular expression for any of the texts, longer ones first."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


def format_of(source: str, *, with_tools: bool) -> Format:
    """Recognize the format of a chat template."""
    reasoning = next((row for row in REASONING if (row.mark or row.close) in source), NO_REASONING)
    calls = next((row for row in CALLS if (row.mark or row.open) in source), NO_CALLS)
    return Format(
        reasoning=reasoning,
        calls=calls if with_tools else NO_CALLS,
        begun=calls.begun,
        ignored=(*reasoning.around, *calls.content),
    )
