"""Conversations through the chat template."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer, Either
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.texts import CONVERSATIONS, TOOLS
from ortolan.export.witness.topic import Topic
from ortolan.runtime.errors import ChatError, ChatTemplateError

REFUSED = "refused by the template"


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Conversations, with tools where the template reads them."""
    if bundled.tokenizer is None or bundled.manifest.kind != "decoder":
        return {}
    asked: dict[str, Any] = {name: (texts, None) for name, texts in CONVERSATIONS.items()}
    with suppress(ChatTemplateError):
        if "tools" in bundled.template.source:
            asked["tools"] = CONVERSATIONS["a question"], TOOLS
    return asked


def ours(bundled: Bundled, question: Any) -> Answer:
    """The prompt's ids; None without a template."""
    messages, tools = question
    try:
        template = bundled.template
    except ChatTemplateError:
        return None
    try:
        return list(template.prompt(messages, tools=tools).ids)
    except (ChatError, ChatTemplateError):
        return REFUSED


def theirs(publisher: Publisher, question: Any) -> Answer:
    """The same from `apply_chat_template`; None without a template."""
    messages, tools = question
    tokenizer = publisher.tokenizer
    if tokenizer.chat_template is None:
        return None
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, tokenize=False
        )
    except Exception:  # whatever a template raises
        return REFUSED
    return Either(_ids(tokenizer, text), lambda: _ids(publisher.saved_tokenizer, text))


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


CHATS = Topic(name="chats", questions=questions, ours=ours, theirs=theirs)
