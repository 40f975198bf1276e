"""For each call format, text of its templates, and two calls as its models write them."""

from typing import Any

from ortolan.runtime.chat.call_syntax import ToolCall
from ortolan.runtime.chat.formats import Format, format_of
from ortolan.runtime.chat.parser import ReplyParser, call_id

SOURCES = {
    "qwen": "<think> </think> <tool_call>",
    "qwen-coder": "<tool_call> <function= <parameter=",
    "glm": "</think> <tool_call> <arg_key>",
    "mistral": "[TOOL_CALLS]",
    "mistral-11": "[TOOL_CALLS] [ARGS] [THINK] [/THINK]",
    "command": "<|START_ACTION|> <|START_THINKING|> <|END_THINKING|>",
    "deepseek": "</think> <｜tool▁call▁begin｜>",
    "lfm": "List of tools: ",
    "olmo": "<function_calls>",
    "phi": "<|tool_call|> <|/tool_call|>",
    "granite": "<|tool_call|>",
    "llama": "dictionary of argument name and its value",
    "llama-python": "params_name1=",
    "gpt-oss": "<|channel|>analysis <|channel|>commentary",
    "kimi": "tool_declare",
    "nemotron": "<think> </think> <TOOLCALL>",
    "apriel": "<tool_call> </tool_calls>",
    "seed": "<seed:tool_call> <function= <parameter= </seed:think>",
    "command-r-plus": "directly-answer",
    "functionary-3.1": "<function=",
    "functionary-3.2": ">>>all",
}
"""Text of the templates of these families."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}},
        },
    }
]

ONE = ToolCall(name="f", arguments={"n": 1, "s": "a b"}, id=call_id(b"", 0))
TWO = ToolCall(name="g.h", arguments={}, id=call_id(b"", 1))

CALLS = {
    "qwen": '<tool_call>\n{"name": "f", "arguments": {"n": 1, "s": "a b"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g.h", "arguments": "{}"}\n</tool_call>',
    "qwen-coder": "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\na b\n"
    "</parameter>\n</function>\n</tool_call>\n<tool_call><function=g.h></function></tool_call>",
    "glm": "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n<arg_key>s</arg_key>\n"
    "<arg_value>a b</arg_value>\n</tool_call>\n<tool_call>g.h\n</tool_call>",
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"n": 1, "s": "a b"}}, {"name": "g.h"}]',
    "mistral-11": '[TOOL_CALLS]f[ARGS]{"n": 1, "s": "a b"}[TOOL_CALLS]g.h[ARGS]{}',
    "command": '<|START_ACTION|>[{"tool_name": "f", "parameters": {"n": 1, "s": "a b"}},\n'
    '{"tool_name": "g.h", "parameters": {}}]<|END_ACTION|>',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
    '```json\n{"n": 1, "s": "a b"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>g.h'
    "<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "lfm": '<|tool_call_start|>[f(n=1, s="a b"), g.h()]<|tool_call_end|>',
    "olmo": "<function_calls>\nf(n=1, s='a b')\ng.h()\n</function_calls>",
    "phi": '<|tool_call|>[{"name": "f", "arguments": {"n": 1, "s": "a b"}}, {"name": "g.h"}]'
    "<|/tool_call|>",
    "granite": '<|tool_call|>[{"name": "f", "arguments": {"n": 1, "s": "a b"}}, {"name": "g.h"}]',
    "llama": '<|python_tag|>{"name": "f", "parameters": {"n": 1, "s": "a b"}}; {"name": "g.h"}',
    "llama-python": "[f(n=1, s='a b'), g.h()]",
    "gpt-oss": '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1, '
    '"s": "a b"}<|call|><|start|>assistant to=functions.g.h<|channel|>commentary json<|message|>{}',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    '<|tool_call_argument_begin|>{"n": 1, "s": "a b"}<|tool_call_end|><|tool_call_begin|>g.h'
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    "nemotron": '<TOOLCALL>[{"name": "f", "arguments": {"n": 1, "s": "a b"}}, {"name": "g.h"}]'
    "</TOOLCALL>",
    "apriel": '<tool_calls>[{"name": "f", "arguments": {"n": 1, "s": "a b"}}, {"name": "g.h"}]'
    "</tool_calls>",
    "seed": "<seed:tool_call>\n<function=f>\n<parameter=n>1</parameter>\n<parameter=s>a b"
    "</parameter>\n</function>\n</seed:tool_call><seed:tool_call><function=g.h>\n</function>"
    "</seed:tool_call>",
    "command-r-plus": 'Action:\n```json\n[\n{"tool_name": "f", "parameters": {"n": 1, "s": "a b"}},'
    '\n{"tool_name": "g.h", "parameters": {}}\n]```',
    "functionary-3.1": '<function=f>{"n": 1, "s": "a b"}</function><function=g.h>{}</function>',
    "functionary-3.2": 'f\n{"n": 1, "s": "a b"}>>>g.h\n{}',
}

Taken = tuple[str, str, tuple[ToolCall, ...]]


def form(family: str, *, with_tools: bool = True) -> Format:
    return format_of(SOURCES[family], with_tools=with_tools)


def taken(pieces: list[str], chosen: Format, **more: Any) -> Taken:
    parser = ReplyParser(chosen, tools=TOOLS, **more)
    parts = [piece for text in pieces for piece in parser.feed(text)] + [*parser.finish()]
    assert all(bool(p.content) + bool(p.reasoning) + bool(p.tool_call) == 1 for p in parts)
    return (
        "".join(p.content for p in parts),
        "".join(p.reasoning for p in parts),
        tuple(p.tool_call for p in parts if p.tool_call is not None),
    )
