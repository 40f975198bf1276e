"""Every token: its text, and the tokens of that text, which need every merge."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.topic import Topic, with_either_tokenizer
from ortolan.export.witness.topics.texts import added_tokens
from ortolan.runtime.inputs.tokenizer import Tokenizer

MOST = 1 << 16
"""Tokens that are asked about: all of most vocabularies, else those near added ones, then others at
random."""

NEAR = 8
"""Ids on either side of a place where added tokens begin or end that are near it."""

AT_ONCE = 1024
"""Tokens in one text. Short texts take longer to hand over than to encode."""


def questions(bundled: Bundled) -> Mapping[str, Sequence[int]]:
    """Ids, which are in order within a question."""
    tokenizer = bundled.tokenizer
    if tokenizer is None:
        return {}
    size = tokenizer.vocab_size
    ids: Sequence[int] = range(size)
    if size > MOST:
        near = _near(tokenizer, size)
        known = set(near)
        # as random as a checkpoint, and the same for each of its bundles
        chance = Random(bundled.manifest.provenance.source_sha256)
        ids = [*near, *(own for own in chance.sample(ids, MOST) if own not in known)]
    parts = [sorted(ids[at : at + AT_ONCE]) for at in range(0, len(ids), AT_ONCE)]
    return {f"{len(part)} tokens from {part[0]} to {part[-1]}": part for part in parts}


def _near(tokenizer: Tokenizer, size: int) -> list[int]:
    """Added tokens, and those near the ends of their runs and of the vocabulary."""
    added = {row["id"] for row in added_tokens(tokenizer)}
    ends = [0, size, *(own for own in range(1, size) if (own in added) != (own - 1 in added))]
    near = {own for end in ends for own in range(end - NEAR, end + NEAR)}
    return sorted(own for own in near | added if 0 <= own < size)


def ours(bundled: Bundled, ids: Sequence[int]) -> Answer:
    """Texts by id, and the ids of all these texts as lines and as words."""
    tokenizer = bundled.tokenizer
    assert tokenizer is not None
    texts = _texts(tokenizer.decode, ids)
    encoded = {name: tokenizer.encode(text) for name, text in _joined(texts)}
    return {"texts": texts, **encoded}


def theirs(publisher: Publisher, ids: Sequence[int]) -> Answer:
    """The same from the publisher's tokenizer."""
    tokenizer = publisher.tokenizer
    texts = _texts(partial(tokenizer.decode, clean_up_tokenization_spaces=False), ids)
    encoded = {name: list(tokenizer(text)["input_ids"]) for name, text in _joined(texts)}
    return {"texts": texts, **encoded}


def explain(bundled: Bundled, publisher: Publisher, ids: Sequence[int]) -> str | None:
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
