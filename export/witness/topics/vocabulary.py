"""Every token: its text, and the tokens of that text, which need every merge."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.topic import Topic, with_either_tokenizer

MOST = 1 << 16
"""Tokens that are asked about: all of most vocabularies, else evenly spread ones."""

AT_ONCE = 1024
"""Tokens in one text. Short texts take longer to hand over than to encode."""


def questions(bundled: Bundled) -> Mapping[str, range]:
    """Ranges of ids."""
    tokenizer = bundled.tokenizer
    if tokenizer is None:
        return {}
    size = tokenizer.vocab_size
    step = -(-size // MOST)
    ranges = (
        range(at, min(at + AT_ONCE * step, size), step) for at in range(0, size, AT_ONCE * step)
    )
    return {f"tokens {ids[0]} to {ids[-1]}": ids for ids in ranges}


def ours(bundled: Bundled, ids: range) -> Answer:
    """Texts by id, and the ids of all these texts as lines and as words."""
    tokenizer = bundled.tokenizer
    assert tokenizer is not None
    texts = _texts(tokenizer.decode, ids)
    encoded = {name: tokenizer.encode(text) for name, text in _joined(texts)}
    return {"texts": texts, **encoded}


def theirs(publisher: Publisher, ids: range) -> Answer:
    """The same from the publisher's tokenizer."""
    tokenizer = publisher.tokenizer
    texts = _texts(partial(tokenizer.decode, clean_up_tokenization_spaces=False), ids)
    encoded = {name: list(tokenizer(text)["input_ids"]) for name, text in _joined(texts)}
    return {"texts": texts, **encoded}


def explain(bundled: Bundled, publisher: Publisher, ids: range) -> str | None:
    """The first token whose text is encoded differently."""
    for token in ids:
        text = publisher.tokenizer.decode([token], clean_up_tokenization_spaces=False)
        own = bundled.tokenizer.encode(text) if bundled.tokenizer else None
        if own != list(publisher.tokenizer(text)["input_ids"]):
            return f"the text of token {token}, {text!r}"
    return None


def _texts(decode: Callable[..., str], ids: Iterable[int]) -> dict[int, str]:
    return {token: decode([token], skip_special_tokens=False) for token in ids}


def _joined(texts: Mapping[int, str]) -> list[tuple[str, str]]:
    # a decoder may drop the space that a token begins with
    return [("lines", "\n".join(texts.values())), ("words", " ".join(texts.values()))]


VOCABULARY = Topic(
    name="vocabulary",
    questions=questions,
    ours=ours,
    theirs=with_either_tokenizer(theirs),
    explain=explain,
)
