"""Tokens and chat templates in the files next to tokenizer.json.

Precedence, order and defaults are those of transformers 5, which reads tokenizer_config.json, and
the older special_tokens_map.json and added_tokens.json. The result fills two files of a bundle:
tokenizer.json gets every token, and tokenizer_config.json every name of a token.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from ortolan.export.errors import OptionError
from ortolan.export.source.side_file import read_side
from ortolan.runtime.inputs.tokenizer import Tokenizer

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"

SPECIAL, ADDED = "special_tokens_map.json", "added_tokens.json"

TEMPLATE, PROCESSOR_TEMPLATE = "chat_template.jinja", "chat_template.json"

TEMPLATES = "additional_chat_templates"
"""Folder of further templates by name, such as tool_use.jinja."""

PROPERTIES = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")

FILES = (CONFIG, SPECIAL, ADDED, TEMPLATE, PROCESSOR_TEMPLATE)

PROCESSORS = ("processor_config.json", "preprocessor_config.json")

NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""Names that every tokenizer has; those of a model end in `_token` too."""

DECODER, EXTRA, OLD_EXTRA = (
    "added_tokens_decoder",
    "extra_special_tokens",
    "additional_special_tokens",
)

REFUSED: Mapping[str, tuple[object, ...]] = {
    "split_special_tokens": (None, False),
    "fast_tokenizer_files": (None, [], [TOKENIZER]),
}
"""Keys that change how text is read in a way that a bundle does not have, with values that do not.
"""

PLAIN = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "PythonBackend", "TokenizersBackend")
"""Classes that read a tokenizer.json as it is; others build parts of it from the config."""

BERT: Mapping[str, str] = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Fields of a BertNormalizer by key of the config."""

LOWERED = frozenset({"siglip2"})
"""Types that learned lower case, as transformers knows and their published files do not say."""

LOWER_CASE = {"type": "Lowercase"}

PREFIX = "add_prefix_space"

Objects = dict[str, Any]

_log = logging.getLogger("ortolan.export")


class _Outline(msgspec.Struct):
    """The parts of tokenizer.json that are read."""

    added_tokens: list[Objects] = []
    normalizer: Any = None
    pre_tokenizer: Any = None


@dataclass(frozen=True, kw_only=True)
class TokenFiles:
    """Contents of files that a bundle needs instead of those of the checkpoint.

    Attributes:
        changed: contents by name.
        dropped: names of files whose contents went into others.
    """

    changed: Mapping[str, bytes]
    dropped: frozenset[str] = frozenset()


def token_files(folder: Path, tokenizer: bytes, *, vocab_size: int | None = None) -> TokenFiles:
    """Read the files next to a tokenizer.json."""
    config = read_side(folder / CONFIG, Objects)
    for key, values in REFUSED.items():
        if config.get(key) not in values:
            raise OptionError(
                f"{folder / CONFIG}: {key} must be {values[-1]!r} (got {config[key]!r:.80}). "
                "Bundles do not have it. Remove it, or pass a tokenizer saved without it."
            )
    changed: dict[str, bytes] = {}
    try:
        outline = msgspec.json.decode(tokenizer, type=_Outline)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return TokenFiles(changed={})  # reported where it is loaded
    normalized = _normalized(folder, config, tokenizer, outline)
    if normalized is not None:
        changed[TOKENIZER] = tokenizer = normalized
    try:
        declared = _declared(folder, config, outline)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise OptionError(
            f"{folder}: the tokens in {CONFIG}, {SPECIAL} or {ADDED} cannot be read: "
            f"{str(error)[:200]}. Save the tokenizer again."
        ) from error
    if declared.tokens:
        changed[TOKENIZER] = _completed(folder, tokenizer, declared, vocab_size)
    merged = dict(config)
    for name, text in declared.names.items():
        if _content(config.get(name)) != text:
            merged[name] = text
    templates, dropped = _templates(folder, config)
    if isinstance(templates, dict):
        merged["chat_template"] = [
            {"name": name, "template": text} for name, text in templates.items()
        ]
    elif templates is not None:
        changed[TEMPLATE] = templates.encode()
    if merged != config:
        changed[CONFIG] = msgspec.json.format(msgspec.json.encode(merged), indent=2)
    return TokenFiles(changed=changed, dropped=dropped)


@dataclass(frozen=True, kw_only=True)
class _Declared:
    """Tokens that files declare.

    Attributes:
        tokens: to add to tokenizer.json, in order.
        numbers: ids that files state, by text.
        names: texts by name, such as `bos_token`.
    """

    tokens: list[AddedToken]
    numbers: Mapping[str, int]
    names: dict[str, str]


def _declared(folder: Path, config: Objects, outline: _Outline) -> _Declared:
    """Tokens of all files. Later files are for checkpoints of transformers 4 and older."""
    own = {int(row["id"]): _token(row) for row in outline.added_tokens}
    values = {name: value for name, value in config.items() if _is_name(name, value)}
    extra = config.get(EXTRA) or config.get(OLD_EXTRA) or []
    stated: dict[str, int] = {}
    if DECODER in config:
        known = {int(number): _token(row) for number, row in config[DECODER].items()}
        stated = {str(token): number for number, token in known.items()}
    else:
        older = read_side(folder / SPECIAL, Objects)
        values |= {n: _as_special(v) for n, v in older.items() if _is_name(n, v)}
        values |= extra if isinstance(extra, dict) else {}
        more = older.get(EXTRA) or ([] if extra else older.get(OLD_EXTRA)) or []
        values |= more if isinstance(more, dict) else {}
        extra = [*_listed(extra), *(_as_special(row) for row in _listed(more) if row not in extra)]
        special = {str(_token(value)) for value in (*values.values(), *extra)}
        stated = {text: int(number) for text, number in read_side(folder / ADDED, Objects).items()}
        known = {
            number: AddedToken(text, normalized=text not in special, special=text in special)
            for text, number in stated.items()
        } | own
    values |= extra if isinstance(extra, dict) else {}
    by_text = {str(token): token for token in known.values()}
    named = {name: _token(values[name]) for name in (*NAMES, *values) if name in values}
    named = {name: by_text.get(str(token), token) for name, token in named.items()}
    present = {repr(token) for token in own.values()}
    tokens = [token for _, token in sorted(known.items()) if repr(token) not in present]
    texts = {str(token) for token in (*own.values(), *tokens)}
    for token in (*named.values(), *map(_token, _listed(extra))):
        if str(token) not in texts:
            texts.add(str(token))
            tokens.append(token)
    names = {name: str(token) for name, token in named.items()}
    for token in tokens:
        token.special = token.special or str(token) in names.values()
    return _Declared(tokens=tokens, numbers=stated, names=names)


def _normalized(folder: Path, config: Objects, tokenizer: bytes, outline: _Outline) -> bytes | None:
    """The tokenizer.json with the normalizer that the config describes; None if it has that."""
    if read_side(folder / "config.json", Objects).get("model_type") in LOWERED:
        parts = _parts(outline.normalizer, "normalizers")
        if LOWER_CASE in parts:
            return None
        return _with(tokenizer, {"type": "Sequence", "normalizers": [LOWER_CASE, *parts]})
    if config.get("tokenizer_class") in PLAIN:
        return None
    for part in _parts(outline.pre_tokenizer, "pretokenizers"):
        wanted = config.get(PREFIX)
        if part.get("type") == "ByteLevel" and wanted not in (None, part.get(PREFIX)):
            raise OptionError(
                f"{folder}: {PREFIX} is {wanted!r:.80} in {CONFIG} and {part.get(PREFIX)!r:.80} in "
                f"{TOKENIZER}. Load the tokenizer with transformers and save it again."
            )
    normalizer = outline.normalizer
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        return None
    fields = {field: config[key] for key, field in BERT.items() if key in config}
    if normalizer | fields == normalizer:
        return None
    return _with(tokenizer, normalizer | fields)


def _with(tokenizer: bytes, normalizer: Objects) -> bytes:
    """A tokenizer.json with another normalizer."""
    return msgspec.json.encode({**msgspec.json.decode(tokenizer), "normalizer": normalizer})


def _parts(component: Any, key: str) -> list[Objects]:
    """The parts of a pre-tokenizer or a normalizer, which a sequence lists under a key."""
    if not isinstance(component, dict):
        return []
    parts = _listed(component.get(key)) or [component]
    return [part for part in parts if isinstance(part, dict)]


def _completed(
    folder: Path, tokenizer: bytes, declared: _Declared, vocab_size: int | None
) -> bytes:
    """A tokenizer.json with the tokens that other files declare.

    A new token gets the next free id, as in transformers, whatever id a file states. Padding that
    the model does not have is left out: it is never read nor written.
    """
    Tokenizer.from_bytes(tokenizer)  # its checks
    library = Library.from_buffer(tokenizer)
    new = {str(token) for token in declared.tokens if library.token_to_id(str(token)) is None}
    library.add_tokens(declared.tokens)
    pad = _pad_beyond(library, declared, new, vocab_size)
    if pad is not None:
        _log.warning("The padding %r is left out: the model has no row for it.", pad)
        others = [token for token in declared.tokens if str(token) != pad]
        return _completed(folder, tokenizer, replace(declared, tokens=others), vocab_size)
    for text in sorted(new):
        number = library.token_to_id(text)
        stated = declared.numbers.get(text, number)
        if number != stated:
            raise OptionError(
                f"{folder}: {text!r:.80} must have the id {stated} according to {CONFIG} or "
                f"{ADDED}, but the next free id of {TOKENIZER} is {number}. Save the tokenizer "
                "again."
            )
        if vocab_size is not None and number is not None and number >= vocab_size:
            raise OptionError(
                f"{folder}: {CONFIG}, {SPECIAL} or {ADDED} adds the token {text!r:.80} with the id "
                f"{number}, but the model has {vocab_size} tokens. Resize its embeddings, or "
                "remove the token from these files."
            )
    return library.to_str(pretty=True).encode()


def _pad_beyond(
    library: Library, declared: _Declared, new: set[str], vocab_size: int | None
) -> str | None:
    """The one new token that the model does not have, if it is named as padding alone."""
    beyond = [text for text in new if (library.token_to_id(text) or 0) >= (vocab_size or 2**63)]
    names = {name for name, text in declared.names.items() if text in beyond}
    return beyond[0] if len(beyond) == 1 and names == {"pad_token"} else None


def _templates(folder: Path, config: Objects) -> tuple[str | dict[str, str] | None, frozenset[str]]:
    """Chat templates that replace those in the files that a bundle copies; None without.

    Also returns the files to leave out, whose content is among them.
    """
    own = folder / TEMPLATE
    further = sorted((folder / TEMPLATES).glob("*.jinja"))
    if further:
        named = {"default": _text(own)} if own.is_file() else {}
        named |= {path.name.removesuffix(".jinja"): _text(path) for path in further}
        return named, frozenset([TEMPLATE])
    path = folder / PROCESSOR_TEMPLATE
    has_processor = any((folder / name).is_file() for name in PROCESSORS)
    if not path.is_file() or (config.get("chat_template") and not has_processor):
        return None, frozenset()
    source = read_side(path, Objects).get("chat_template")
    if not isinstance(source, str):
        raise OptionError(f"{path}: chat_template must be a text. Correct or remove the file.")
    return source, frozenset()


def _is_name(name: str, value: object) -> bool:
    """Whether a key names a token; others, such as add_bos_token, are settings."""
    return name.endswith("_token") and (isinstance(value, str) or _content(value) is not None)


def _content(value: object) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _token(value: Any) -> AddedToken:
    """A token as files write it: its text, or its text with properties."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    return AddedToken(**{key: value[key] for key in PROPERTIES if key in value})


def _as_special(value: Any) -> Any:
    return {**value, "special": True} if isinstance(value, dict) else value


def _listed(values: Any) -> list[Any]:
    return values if isinstance(values, list) else []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: expected a text in UTF-8, got {error}. Correct it.") from error
