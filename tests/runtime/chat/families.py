"""Chat templates with the constructs of published families, and tokenizers for them.

The templates in `templates/` were written for these tests, in the style of the family that each is
named after.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tests.runtime.tiny_tokenizers import byte_level, gemma, sentencepiece
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library
from transformers import PreTrainedTokenizerFast

from ortolan.runtime.chat.template import ChatTemplate
from ortolan.runtime.inputs.tokenizer import Tokenizer

FOLDER = Path(__file__).parent / "templates"

FAMILIES = sorted(path.stem for path in FOLDER.glob("*.jinja"))

# fmt: off
SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "<|user|>", "<|assistant|>",
    "<|system|>", "<|tool|>", "<|end|>", "<｜User｜>", "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>", "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>",
    "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|SYSTEM_TOKEN|>",
    "<|CHATBOT_TOKEN|>", "<|start|>", "<|message|>", "<|channel|>", "<|python_tag|>",
    "<|call|>", "<|return|>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>",
]
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "<h1>", "\n\n"]
# fmt: on

SENTENCEPIECE = {"gemma": gemma, "mistral": sentencepiece, "zephyr": sentencepiece}
"""Tokenizers of these families; the others are byte-level."""


@cache
def library(family: str) -> Library:
    tokenizer = SENTENCEPIECE.get(family, byte_level)()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    return tokenizer


def source(family: str) -> str:
    return (FOLDER / f"{family}.jinja").read_text()


@cache
def theirs(family: str) -> Any:
    """The tokenizer of transformers with the same template and vocabulary."""
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=library(family), bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = source(family)
    return tokenizer


@cache
def ours(family: str) -> ChatTemplate:
    data = json.dumps(json.loads(library(family).to_str())).encode()
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate(source(family), Tokenizer.from_bytes(data), special)
