"""Conversations through the chat template."""

import re
from collections.abc import Mapping
from typing import Any

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer, Either
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.texts import BEGUN, CALLED, CONVERSATIONS, REASONED, TOOLS
from ortolan.export.witness.topic import Topic
from ortolan.runtime.errors import ChatError, ChatTemplateError

REFUSED = "refused by the template"

READS_TOOLS = re.compile(r"""(?<![\w."'])tools(?![\w"'])""")
"""The variable, which is not a field of messages."""


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Conversations, with what the template reads beyond texts."""
    if bundled.tokenizer is None or bundled.manifest.kind != "decoder":
        return {}
    asked: dict[str, Any] = {
        name: {"messages": messages} for name, messages in CONVERSATIONS.items()
    }
    try:
        source = bundled.template.source
    except ChatTemplateError:
        return asked
    asked["a begun answer"] = {"messages": BEGUN, "continue_final_message": True}
    if "reasoning_content" in source or "thinking" in source:
        asked["reasoning"] = {"messages": REASONED}
    if READS_TOOLS.search(source):
        asked["tools"] = {"messages": CONVERSATIONS["a question"], "tools": TOOLS}
        if "tool_calls" in source:
            asked["a call and its result"] = {"messages": CALLED, "tools": TOOLS}
    return asked


def ours(bundled: Bundled, question: Mapping[str, Any]) -> Answer:
    """The prompt and its ids; None without a template."""
    try:
        template = bundled.template
    except ChatTemplateError:
        return None
    try:
        prompt = template.prompt(**question)
    except (ChatError, ChatTemplateError):
        return REFUSED
    return {"prompt": prompt.text, "ids": list(prompt.ids)}


def theirs(publisher: Publisher, question: Mapping[str, Any]) -> Answer:
    """The same from `apply_chat_template`; None without a template."""
    tokenizer = publisher.tokenizer
    if tokenizer.chat_template is None:
        return None
    messages = [_with_thoughts(message) for message in question["messages"]]
    continues = question.get("continue_final_message", False)
    try:
        text = tokenizer.apply_chat_template(
            messages,
            tools=question.get("tools"),
            continue_final_message=continues,
            add_generation_prompt=not continues,
            tokenize=False,
        )
    except Exception:  # whatever a template raises
        return REFUSED
    if any(_is_dropped(message, text) for message in messages):
        return REFUSED
    ids = Either(_ids(tokenizer, text), lambda: _ids(publisher.saved_tokenizer, text))
    return {"prompt": text, "ids": ids}


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _with_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose chain of thought has the name that gpt-oss gives it, too."""
    thoughts = message.get("reasoning_content")
    return message if thoughts is None else {**message, "thinking": thoughts}


def _is_dropped(message: Mapping[str, Any], text: str) -> bool:
    """Whether a template leaves out instructions or results, which a bundle rejects."""
    if message["role"] not in ("system", "tool"):
        return False
    # a word, since a template may write JSON
    return max(re.findall(r"\w+", message["content"]), key=len) not in text


CHATS = Topic(name="chats", questions=questions, ours=ours, theirs=theirs)
