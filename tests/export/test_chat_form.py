"""Chat templates as texts around messages: what transformers renders, or none."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.chat import tiny_chat
from tests.runtime.chat.families import FAMILIES, ours, theirs
from tests.runtime.chat.test_template import CONVERSATIONS

from ortolan.export.chat_form import chat_form, form_of
from ortolan.runtime.bundle.manifest import Tokens
from ortolan.runtime.chat.template import ChatTemplate

LOOKS_INTO_MESSAGES = {"nemotron", "smollm3"}

NAMES = ("one", "three", "system", "empty")

SHAPES = {
    "a text that it looks for": "{% if 'now' in m.content %}!{% endif %}{{ m.content }}",
    "a length": "{{ m.content[:300] }}",
    "a repeated message": "{{ m.content }}{{ m.content }}",
    "a dropped message": "{% if m.role == 'user' %}{{ m.content }}{% endif %}",
    "a number of the turn": "{{ loop.index }}{{ m.content }}",
    "quotes": "{{ m.content | tojson }}",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_form_writes_what_transformers_renders(family: str) -> None:
    form = form_of(ours(family))
    if family in LOOKS_INTO_MESSAGES:
        assert form is None
        return
    assert form is not None
    for name in NAMES:
        messages, _ = CONVERSATIONS[name]
        expected = theirs(family).apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        turns: Any = [(message["role"], message["content"]) for message in messages]
        assert form.write(turns, datetime.now()) == expected


def changed(source: str) -> ChatTemplate:
    return ChatTemplate(source, ours("qwen2").tokenizer, {})


def test_template_that_rejects_system_messages_has_a_form_without_them() -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    form = form_of(changed(refuses + "{% for m in messages %}{{ m.content }};{% endfor %}"))
    assert form is not None
    assert (form.opening, form.answer, form.closing, form.system) == ("", ";", ";", None)


@pytest.mark.parametrize("shape", SHAPES)
def test_template_that_does_more_has_no_form(shape: str) -> None:
    plain = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    assert form_of(changed(plain)) is not None
    assert form_of(changed(plain.replace("{{ m.content }}", SHAPES[shape]))) is None


def test_form_of_a_bundle_names_the_end_of_an_answer(tmp_path: Path) -> None:
    template = tiny_chat.TEMPLATE.replace("{{ eos_token }}", "<eos>").encode()
    files = {"chat_template.jinja": template}
    model = tiny_chat.chat_model(tmp_path, files, tokens=Tokens())
    form = chat_form(model.bundle, model.tokenizer)
    assert form is not None
    assert (form.opening, form.ends) == ("<bos>u:", (tiny_chat.EOS,))
    assert chat_form(model.bundle, None) is None
