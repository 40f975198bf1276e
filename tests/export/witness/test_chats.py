"""Chat templates of published models: transformers renders them as we do."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runtime.tiny_tokenizers import byte_level
from transformers import PreTrainedTokenizerFast

from ortolan.export.witness.compare import Comparison
from ortolan.export.witness.topics import chats
from ortolan.runtime.chat.template import ChatTemplate
from ortolan.runtime.inputs.tokenizer import Tokenizer

TEMPLATES = sorted((Path(__file__).parents[2] / "runtime/chat/templates").glob("*.jinja"))

CONTROL = re.compile(r"<\|[^|>]+\|>|\[/?[A-Z_]+\]")

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_transformers_agrees(path: Path) -> None:
    source, library = path.read_text(), byte_level()
    library.add_special_tokens(sorted(set(CONTROL.findall(source))))
    tokenizer = Tokenizer.from_bytes(library.to_str().encode())
    fast: Any = PreTrainedTokenizerFast
    theirs = fast(tokenizer_object=library, chat_template=source, **NAMES)
    bundled: Any = SimpleNamespace(
        tokenizer=tokenizer,
        template=ChatTemplate(source, tokenizer, NAMES),
        manifest=SimpleNamespace(kind="decoder"),
    )
    publisher: Any = SimpleNamespace(tokenizer=theirs, saved_tokenizer=theirs)
    questions = chats.questions(bundled)
    assert len(questions) >= 8
    for question in questions.values():
        comparison = Comparison(0.0)
        comparison.compare(chats.ours(bundled, question), chats.theirs(publisher, question))
        assert comparison.first is None
