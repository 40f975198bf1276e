"""Token ids and decoded texts: languages, code, emoji, spaces, and control tokens."""

from collections.abc import Mapping
from typing import Any

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer, Either
from ortolan.export.witness.publisher import Publisher, UnansweredError
from ortolan.export.witness.texts import TEXTS as PLAIN
from ortolan.export.witness.topic import Topic, with_either_tokenizer

MOST_CONTROL = 12
"""Control tokens that are written into texts: the first and the last of the vocabulary."""


def questions(bundled: Bundled) -> Mapping[str, str]:
    """Texts, by what is particular about them."""
    tokenizer = bundled.tokenizer
    if tokenizer is None:
        return {}
    special = tokenizer.special_ids()
    half = MOST_CONTROL // 2
    shown = special if len(special) <= MOST_CONTROL else [*special[:half], *special[-half:]]
    control = {}
    for number, token in enumerate(shown):
        text = tokenizer.text_of(token)
        # alone, after a space, between words, and at the end
        form = ("{}", "a {}", "one{}two", " {} ", "({})")[number % 5]
        control[f"{text} in a text"] = form.format(text)
    return {**{repr(text[:32]): text for text in PLAIN}, **control}


def ours(bundled: Bundled, text: str) -> Answer:
    """Ids, and what they decode to."""
    tokenizer = bundled.tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode(text)
    return {"ids": ids, "decoded": tokenizer.decode(ids)}


def theirs(publisher: Publisher, text: str) -> Answer:
    """The same from the publisher's tokenizer, or from its file."""
    return Either(_read(publisher.tokenizer, text), lambda: _read(publisher.saved_tokenizer, text))


def _read(tokenizer: Any, text: str) -> Answer:
    ids = list(tokenizer(text)["input_ids"])
    # tokenizers shows a special token that tokenizer_config.json describes once more
    shown = [token for token in ids if token not in tokenizer.all_special_ids]
    decoded = tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return {"ids": ids, "decoded": decoded}


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
    questions=questions,
    ours=our_offsets,
    theirs=with_either_tokenizer(their_offsets),
)

TEXTS = Topic(name="texts", questions=questions, ours=ours, theirs=theirs)
