"""How models write what is no plain text: reasoning and calls of tools, as data.

Which format a model has is seen from its chat template, which shows the model its own earlier
calls in the same format.
"""

from dataclasses import dataclass

from ortolan.runtime.chat.call_bodies import (
    Body,
    fenced_calls,
    headed,
    json_calls,
    pair_calls,
    python_calls,
    xml_calls,
)

__all__ = ["CALLS", "REASONING", "CallFormat", "Format", "Reasoning", "format_of"]


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text between `open` and `close` is reasoning.

    Attributes:
        mark: text of a template whose model writes it so; `close` where empty.
        around: texts outside of it that mean nothing further.
        ends: special tokens that end an answer, whatever the template shows.
    """

    open: str
    close: str
    mark: str = ""
    around: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """How calls are written.

    Attributes:
        mark: text of a template whose model writes them so.
        open: what they begin with; empty where only `bare` says it.
        others: what they may begin with instead.
        close: what they end with; empty for the end of the reply or the next `open`. Without it
            there is no call, unless it ends the reply, as one of the `ends` of `Reasoning` does.
        body: reads what is between the two.
        bare: an answer that begins so is a call as a whole, without `open`.
        begun: what a prompt ends with that belongs to the reply.
        content: what begins text that is no call.
        around: texts around calls that mean nothing further.
        inside: special tokens of the body.
    """

    mark: str
    body: Body
    open: str = ""
    others: tuple[str, ...] = ()
    close: str = ""
    bare: str = ""
    begun: str = ""
    content: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()

    @property
    def opens(self) -> tuple[str, ...]:
        """What a call may begin with."""
        return tuple(filter(None, (self.open, *self.others)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The format of one model.

    Attributes:
        reasoning: `None` for a model that writes none.
        calls: `None` where calls are text.
        begun: what a prompt ends with that belongs to the reply.
        ignored: texts that mean nothing.
    """

    reasoning: Reasoning | None = None
    calls: CallFormat | None = None
    begun: str = ""
    ignored: tuple[str, ...] = ()

    @property
    def ends(self) -> tuple[str, ...]:
        """Special tokens that end an answer, whatever the template shows."""
        return () if self.reasoning is None else self.reasoning.ends

    @property
    def markers(self) -> frozenset[str]:
        """Every text with a meaning, some of which are special tokens."""
        reasoning, calls = self.reasoning, self.calls
        texts = [self.begun, *self.ignored, *self.ends]
        if reasoning is not None:
            texts += [reasoning.open, reasoning.close]
        if calls is not None:
            texts += [*calls.opens, calls.close, *calls.around, *calls.inside]
        return frozenset(filter(None, texts))


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
"""The first whose mark a template has."""

_NAME = r"(?P<name>[\w.:/-]+)"

CALLS = (
    CallFormat(  # gpt-oss
        mark="<|channel|>commentary",
        open="<|channel|>commentary to=functions.",
        others=("<|channel|>analysis to=functions.", "<|start|>assistant to=functions."),
        bare="to=functions.",
        close="<|call|>",
        body=headed(
            r"(?:to=functions\.)?(?P<name>[\w.:/-]+)\s*(?:<\|channel\|>\w+\s*)?"
            r"(?:<\|constrain\|>)?(?:\w+\s*)?<\|message\|>"
        ),
        inside=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"),
    ),
    CallFormat(
        mark="<seed:tool_call>",
        open="<seed:tool_call>",
        close="</seed:tool_call>",
        body=xml_calls,
    ),
    CallFormat(  # Qwen 3 Coder, Nemotron 3
        mark="<parameter=", open="<tool_call>", close="</tool_call>", body=xml_calls
    ),
    CallFormat(  # Functionary 3.1
        mark="<function=", open="<function=", close="</function>", body=headed(rf"{_NAME}>")
    ),
    CallFormat(mark="<arg_key>", open="<tool_call>", close="</tool_call>", body=pair_calls),
    CallFormat(  # Apriel, Hunyuan, MiniMax M1
        mark="</tool_calls>", open="<tool_calls>", close="</tool_calls>", body=json_calls
    ),
    CallFormat(mark="<tool_call>", open="<tool_call>", close="</tool_call>", body=json_calls),
    CallFormat(mark="<TOOLCALL>", open="<TOOLCALL>", close="</TOOLCALL>", body=json_calls),
    CallFormat(  # Mistral from tekken v11 on
        mark="[ARGS]",
        open="[TOOL_CALLS]",
        body=headed(rf"{_NAME}\s*(?:\[CALL_ID\]\s*(?P<id>\w+)\s*)?\[ARGS\]"),
        inside=("[ARGS]", "[CALL_ID]"),
    ),
    CallFormat(mark="[TOOL_CALLS]", open="[TOOL_CALLS]", body=json_calls),
    CallFormat(
        mark="<|START_ACTION|>", open="<|START_ACTION|>", close="<|END_ACTION|>", body=json_calls
    ),
    CallFormat(mark="directly-answer", open="Action:", body=fenced_calls),  # Command R and R+
    CallFormat(
        mark="<｜tool▁call▁begin｜>",
        open="<｜tool▁call▁begin｜>",
        close="<｜tool▁call▁end｜>",
        body=headed(rf"(?:function<｜tool▁sep｜>)?{_NAME}\s*(?:<｜tool▁sep｜>\s*)?(?:```json)?"),
        around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        inside=("<｜tool▁sep｜>",),
    ),
    CallFormat(  # Kimi K2, whose ids say which tool and which call
        mark="tool_declare",
        open="<|tool_call_begin|>",
        close="<|tool_call_end|>",
        body=headed(
            r"(?P<id>(?:functions\.)?(?P<name>[\w./-]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>"
        ),
        around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        inside=("<|tool_call_argument_begin|>",),
    ),
    CallFormat(  # LFM 2, whose older templates do not show calls
        mark="List of tools: ",
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
    CallFormat(  # Functionary 3.2
        mark=">>>all", open=">>>", body=headed(_NAME), begun=">>>", content=(">>>all\n",)
    ),
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
    reasoning = next((each for each in REASONING if (each.mark or each.close) in source), None)
    calls = next((each for each in CALLS if each.mark in source), None)
    around = () if reasoning is None else reasoning.around
    return Format(
        reasoning=reasoning,
        calls=calls if with_tools else None,
        begun="" if calls is None else calls.begun,
        ignored=(*around, *(() if calls is None else calls.content)),
    )
