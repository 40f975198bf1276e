"""Token ids and decoded texts: languages, code, emoji, spaces, and added tokens."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.floats import UnansweredError
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.texts import TEXTS as PLAIN
from ortolan.export.witness.topic import Topic, with_either_tokenizer
from ortolan.runtime.inputs.tokenizer import Tokenizer

MOST_ADDED = 12
"""Added tokens that are written into texts: the first and the last of the vocabulary."""

ADDED = "added tokens"

AROUND = "one {0}  two{0}\n{0}three {0}"
"""A token between spaces, letters and lines, which some tokens take in, and at the end."""


def questions(bundled: Bundled) -> Mapping[str, str | None]:
    """Texts, by what is particular about them; None stands for the added tokens themselves."""
    tokenizer = bundled.tokenizer
    if tokenizer is None:
        return {}
    added, half = [row["content"] for row in added_tokens(tokenizer)], MOST_ADDED // 2
    shown = added if len(added) <= MOST_ADDED else [*added[:half], *added[-half:]]
    return {
        ADDED: None,
        **{repr(text[:32]): text for text in PLAIN},
        **{f"{token} in a text": AROUND.format(token) for token in shown},
    }


def ours(bundled: Bundled, text: str | None) -> Answer:
    """Ids, and what they decode to."""
    tokenizer = bundled.tokenizer
    assert tokenizer is not None
    if text is None:
        return {
            row["id"]: _shown(row["content"], row["special"]) for row in added_tokens(tokenizer)
        }
    ids = tokenizer.encode(text)
    return {
        "ids": ids,
        "decoded": tokenizer.decode(ids),
        "decoded with special tokens": tokenizer.decode(ids, skip_special_tokens=False),
    }


def theirs(publisher: Publisher, text: str | None) -> Answer:
    """The same from the publisher's tokenizer."""
    tokenizer = publisher.tokenizer
    added = tokenizer.added_tokens_decoder
    if text is None:
        return {number: _shown(token.content, token.special) for number, token in added.items()}
    ids = list(tokenizer(text)["input_ids"])
    # tokenizers shows a special token that tokenizer_config.json describes once more
    shown = [token for token in ids if not (token in added and added[token].special)]
    return {
        "ids": ids,
        "decoded": tokenizer.decode(
            shown, skip_special_tokens=True, clean_up_tokenization_spaces=False
        ),
        "decoded with special tokens": tokenizer.decode(ids, clean_up_tokenization_spaces=False),
    }


def explain(bundled: Bundled, publisher: Publisher, text: str | None) -> str | None:
    """The first two tokens that differ, as texts."""
    if text is None or bundled.tokenizer is None:
        return None
    tokenizer, other = bundled.tokenizer, publisher.tokenizer
    for one, two in zip(tokenizer.encode(text), other(text)["input_ids"], strict=False):
        if one != two:
            shown = tokenizer.decode([one], skip_special_tokens=False)
            return f"{shown!r} in place of {other.decode([two])!r}"
    return None


def added_tokens(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Rows of a tokenizer's added tokens, with `id`, `content` and `special`."""
    rows: list[dict[str, Any]] = msgspec.json.decode(tokenizer.to_json())["added_tokens"]
    return rows


def _shown(text: str, special: bool) -> str:
    return f"{text!r}{', special' if special else ''}"


def offset_questions(bundled: Bundled) -> Mapping[str, str]:
    """The texts alone."""
    return {name: text for name, text in questions(bundled).items() if text is not None}


def our_offsets(bundled: Bundled, text: str) -> Answer:
    """First character of each token, and the one after its last, without special tokens."""
    tokenizer = bundled.tokenizer
    assert tokenizer is not None
    return tokenizer.encode_with_offsets(text)[1]


def their_offsets(publisher: Publisher, text: str) -> Answer:
    """The same from the publisher's tokenizer, if it is not one in Python."""
    tokenizer = publisher.tokenizer
    if not tokenizer.is_fast:
        raise UnansweredError(f"{publisher.name} has no offsets of a tokenizer in Python")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return list(encoded["offset_mapping"])


OFFSETS = Topic(
    name="offsets",
    questions=offset_questions,
    ours=our_offsets,
    theirs=with_either_tokenizer(their_offsets),
)

TEXTS = Topic(
    name="texts",
    questions=questions,
    ours=ours,
    theirs=with_either_tokenizer(theirs),
    explain=explain,
)
