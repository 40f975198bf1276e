"""`tool_choice`: forced calls are calls of an offered tool, whatever the model would write."""

import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.refusals import refusal
from tests.runtime.chat.tiny_chat import USER, chat_model

from ortolan.runtime import Decoder, Grammar, Sampling
from ortolan.runtime.chat.parser import Piece
from ortolan.runtime.chat.reply import Reply
from ortolan.runtime.generation.grammar import GrammarCompiler, GrammarMatcher

SHORT = {"type": "string", "pattern": "^[a-z]{1,6}$"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather.",
            "parameters": {
                "type": "object",
                "properties": {
                    "unit": {"type": "string", "enum": ["C", "F"], "description": "unit"},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9, "description": "n"},
                    "now": {"type": "boolean", "description": "whether"},
                },
                "required": ["unit"],
            },
        },
    },
    {"type": "function", "function": {"name": "time", "description": "The time."}},
]

FOLDER = Path(__file__).parent / "choices"
"""Templates of a line each, since the tokenizer has no line end."""

TEMPLATES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))}

RANDOM = [name for name in TEMPLATES if name not in ("reasoning", "hidden")]
"""Templates of models that a random model can imitate; it would not end its reasoning."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoder]:
    folder = tmp_path_factory.mktemp("choices")
    return {
        name: chat_model(
            folder / name,
            {
                "chat_template.jinja": template.encode(),
                "tokenizer_config.json": json.dumps({"eos_token": "<eos>"}).encode(),
            },
            context_length=2048,
        )
        for name, template in TEMPLATES.items()
    }


def drawn(seed: int, **more: Any) -> Any:
    return {
        "tools": TOOLS, "sampling": Sampling(temperature=20.0, seed=seed), "max_new_tokens": 500,
        **more,
    }  # fmt: skip


def check(reply: Reply, names: tuple[str, ...] = ("weather", "time")) -> None:
    assert reply.tool_calls, reply.completion.text
    assert not reply.content
    for call in reply.tool_calls:
        assert call.name in names
        if call.name == "time":
            assert call.arguments == {}
            continue
        assert call.arguments["unit"] in ("C", "F")
        assert set(call.arguments) <= {"unit", "days", "now"}
        assert call.arguments.get("days", 1) in range(1, 10)
        assert isinstance(call.arguments.get("now", True), bool)


def matcher_of(model: Decoder, grammar: Grammar) -> GrammarMatcher:
    return GrammarCompiler(model.manifest, model._chat.template.tokenizer).matcher(grammar)


@pytest.mark.parametrize("name", RANDOM)
def test_a_random_model_calls_an_offered_tool(models: dict[str, Decoder], name: str) -> None:
    called: set[str] = set()
    for seed in range(4):
        reply = models[name].chat([USER], **drawn(seed, tool_choice="required"))
        if reply.completion.finish_reason == "stop":
            check(reply)
        else:  # calls until the context is full
            assert len(reply.tool_calls) > 1
        called.update(call.name for call in reply.tool_calls)
    assert called <= {"weather", "time"}


@pytest.mark.parametrize("name", RANDOM)
def test_a_name_forces_one_call_of_that_tool(models: dict[str, Decoder], name: str) -> None:
    for choice in ("weather", {"type": "function", "function": {"name": "weather"}}):
        reply = models[name].chat([USER], **drawn(1, tool_choice=choice))
        check(reply, ("weather",))
        assert len(reply.tool_calls) == 1
        assert reply.completion.finish_reason == "stop"


@pytest.mark.parametrize("name", TEMPLATES)
def test_none_prevents_calls_although_the_model_sees_the_tools(
    models: dict[str, Decoder], name: str
) -> None:
    model = models[name]
    chat = model._chat
    question = chat.question([USER], {"tools": TOOLS, "tool_choice": "none"})
    assert question.prompt == chat.question([USER], {"tools": TOOLS}).prompt
    reply = model.chat([USER], **drawn(1, tool_choice="none", max_new_tokens=60))
    assert not reply.tool_calls
    parser = chat.question([USER], {"tools": TOOLS}).parser()
    assert not [piece for piece in parser.feed(reply.completion.text) if piece.tool_call]


def test_reasoning_that_has_begun_ends_before_the_call(tmp_path: Path) -> None:
    template = TEMPLATES["reasoning"].replace(
        "{% if add_generation_prompt %}<bos>a:", "{% if add_generation_prompt %}<bos>a:<think>"
    )
    model = chat_model(tmp_path, {"chat_template.jinja": template.encode()})
    question = model._chat.question([USER], {"tools": TOOLS, "tool_choice": "time"})
    grammar = question.options["grammar"]
    assert grammar is not None
    matcher = matcher_of(model, grammar)
    written = ""
    for text in ("Hm, <", "/think>", " ", "<"):
        assert not matcher.forced
        for token in model._chat.template.tokenizer.encode(text, add_special_tokens=False):
            matcher.accept(token)
        written += text
    while matcher.forced:
        written += question.tokenizer.decode(matcher.forced[:1])
        matcher.accept(matcher.forced[0])
    assert written.endswith('</think> <tool_call>{"name": "time", "arguments": {')
    parser = question.parser()
    pieces = [*parser.feed(written + "}}</tool_call>"), *parser.finish()]
    assert pieces[0].reasoning
    assert [piece.tool_call.name for piece in pieces if piece.tool_call] == ["time"]


def test_a_choice_applies_to_conversations_and_services(models: dict[str, Decoder]) -> None:
    model = models["json"]
    conversation = model.conversation(tools=TOOLS)
    options = drawn(2, tool_choice="weather")
    del options["tools"]
    reply = conversation.ask("Hi.", **options)
    check(reply, ("weather",))
    answer = conversation.answer_tools({reply.tool_calls[0].id: "7"}, max_new_tokens=4)
    assert len(answer.completion.tokens) == 4, "the choice was for one turn"
    (alone,) = model.chat([USER], n=1, **drawn(2, tool_choice="required"))
    with model.serve() as service:
        served = service.chat([USER], **drawn(2, tool_choice="required")).result()
    assert [call.name for call in served.tool_calls] == [call.name for call in alone.tool_calls]
    assert served.tool_calls[0].id != alone.tool_calls[0].id
    two = model.chat([USER], n=2, **drawn(2, tool_choice="required"))
    assert len({reply.tool_calls[0].id for reply in two}) == 2
    stream = model.chat_stream([USER], **drawn(2, tool_choice="required"))
    pieces: list[Piece] = list(stream)
    assert [piece.tool_call for piece in pieces] == [*stream.reply.tool_calls]


def schema(name: str, parameters: Any) -> tuple[str, dict[str, Any]]:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    return name, {"tools": tools, "tool_choice": "f", "max_new_tokens": 4}


CONTINUED = [USER, {"role": "assistant", "content": "Let me see."}]

REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "no tools": ("json", {"tool_choice": "required"}),
    "a name without tools": ("json", {"tool_choice": "weather"}),
    "an unknown name": ("json", {"tools": TOOLS, "tool_choice": "rain"}),
    "a number": ("json", {"tools": TOOLS, "tool_choice": 3}),
    "a word as name": ("json", {"tools": TOOLS, "tool_choice": {"function": {"name": "auto"}}}),
    "a grammar": ("json", {"tools": TOOLS, "tool_choice": "none", "grammar": Grammar("")}),
    "arguments that are no object": schema("json", {"type": "string"}),
    "an impossible argument": schema("json", {"properties": {}, "required": ["x"]}),
    "an argument without a schema": schema("xml", {"required": ["x"]}),
    "a damaged schema": schema("xml", {"required": True}),
    "alternatives": schema("xml", {"anyOf": [{"properties": {"x": {}}}]}),
    "an unknown type": schema("python", {"properties": {"x": {"type": "strong"}}}),
    "the middle of an answer": (
        "bare",
        {"messages": CONTINUED, **drawn(1, tool_choice="time", continue_final_message=True)},
    ),
    "a format that is not shown": ("hidden", {"tools": TOOLS, "tool_choice": "required"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_choice_that_cannot_be_forced_is_refused(
    models: dict[str, Decoder], name: str, snapshot: SnapshotAssertion
) -> None:
    model, options = REFUSED[name]
    assert refusal(lambda: models[model].chat(**{"messages": [USER], **options})) == snapshot


def test_a_call_that_does_not_fit_is_text(models: dict[str, Decoder]) -> None:
    reply = models["json"].chat([USER], **drawn(1, tool_choice="weather", max_new_tokens=30))
    assert reply.completion.finish_reason == "length"
    assert reply.content.startswith("<tool_call>")
    assert not reply.tool_calls


def test_a_continued_answer_may_contain_a_call(models: dict[str, Decoder]) -> None:
    check(
        models["json"].chat(CONTINUED, **drawn(1, tool_choice="time", continue_final_message=True))
    )
    assert models["hidden"].chat([USER], tools=TOOLS, tool_choice="auto", max_new_tokens=1)
