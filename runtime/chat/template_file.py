"""Reads the chat template that lies in a bundle."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.errors import ChatTemplateError
from ortolan.runtime.inputs.tokenizer import Tokenizer

__all__ = ["read_chat_template"]

TEMPLATE = "chat_template.jinja"

TOKENIZER_CONFIG = "tokenizer_config.json"


def read_chat_template(
    bundle: Bundle, tokenizer: Tokenizer
) -> tuple[str | dict[str, str], dict[str, str]]:
    """The chat template of a bundle, and the special tokens that it knows by name.

    Case 1: chat_template.jinja.
    Case 2: in tokenizer_config.json, one template.
    Case 3: there, several by name.

    Raises:
        ChatTemplateError: there is none.
    """
    names = {file.name for file in bundle.manifest.files}
    config = _object(bundle.read(TOKENIZER_CONFIG)) if TOKENIZER_CONFIG in names else {}
    source: Any = config.get("chat_template")
    if TEMPLATE in names:
        source = _decoded(bundle.read(TEMPLATE))
    elif isinstance(source, list):
        source = {str(each["name"]): str(each["template"]) for each in source if _is_named(each)}
    if not isinstance(source, str | dict) or not source:
        raise ChatTemplateError(
            f"chat: expected a bundle with {TEMPLATE}, got one without. Put the template of the "
            "model beside its checkpoint and export again, or use generate with a text."
        )
    tokens = bundle.manifest.tokens
    own = {"bos_token": tokens.bos, "eos_token": tokens.eos[0] if tokens.eos else None}
    special = {
        name: tokenizer.decode([token], skip_special_tokens=False)
        for name, token in own.items()
        if token is not None and not config
    }
    return source, special | _special_tokens(config)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The texts of special tokens, by names such as `bos_token`."""
    found = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and {"name", "template"} <= value.keys()


def _object(data: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ChatTemplateError(
            f"{TOKENIZER_CONFIG}: expected a JSON object, got {error}. Export again."
        ) from error


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ChatTemplateError(
            f"{TEMPLATE}: expected UTF-8, got byte 0x{data[error.start]:02x} at {error.start}. "
            "Convert the file, and export again."
        ) from error
