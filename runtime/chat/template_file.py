"""Reads the chat template of a bundle."""

from typing import Any

import msgspec

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.errors import ChatTemplateError
from ortolan.runtime.inputs.tokenizer import Tokenizer

TEMPLATE = "chat_template.jinja"

TOKENIZER_CONFIG = "tokenizer_config.json"


def read_chat_template(
    bundle: Bundle, tokenizer: Tokenizer
) -> tuple[str | dict[str, str], dict[str, str]]:
    """Return the chat template of a bundle, and its special tokens by name.

    Case 1: chat_template.jinja.
    Case 2: one template in tokenizer_config.json.
    Case 3: several named templates in tokenizer_config.json.
    """
    names = {file.name for file in bundle.manifest.files}
    config = _object(bundle.read(TOKENIZER_CONFIG)) if TOKENIZER_CONFIG in names else {}
    source: Any = config.get("chat_template")
    if TEMPLATE in names:
        try:
            source = bundle.read(TEMPLATE).decode()
        except UnicodeDecodeError as error:
            raise ChatTemplateError(
                f"{TEMPLATE} must be UTF-8: {error}. Convert the file and export again."
            ) from error
    elif isinstance(source, list):
        named = [row for row in source if isinstance(row, dict) and {"name", "template"} <= {*row}]
        source = {str(row["name"]): str(row["template"]) for row in named}
    if not isinstance(source, str | dict) or not source:
        raise ChatTemplateError(
            f"This bundle has no {TEMPLATE}. Put the model's template next to its checkpoint and "
            "export again, or use generate."
        )
    if config:
        texts = {
            name: value.get("content") if isinstance(value, dict) else value
            for name, value in config.items()
            if name.endswith("_token")
        }
        return source, {name: text for name, text in texts.items() if isinstance(text, str)}
    tokens = bundle.manifest.tokens
    own = {"bos_token": tokens.bos, "eos_token": tokens.eos[0] if tokens.eos else None}
    return source, {
        name: tokenizer.decode([token], skip_special_tokens=False)
        for name, token in own.items()
        if token is not None
    }


def _object(data: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ChatTemplateError(
            f"{TOKENIZER_CONFIG} is not a JSON object: {error}. Export again."
        ) from error
