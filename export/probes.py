"""The token sequences on which a bundle must agree with PyTorch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ortolan.export.errors import OptionError
from ortolan.runtime.tokenizer import Tokenizer

LENGTHS = (1, 2, 5, 16, 33, 64, 128, 512)
"""Tokens of each probe: the first step alone, odd lengths, more than one chunk."""

TEXT = '''\
A bird that sings in the hedge before sunrise has no need of an audience. It repeats a short
phrase, waits, changes the last note, and begins again. People who collect such songs write them
down as rows of marks: a rising mark, a falling mark, a pause. Reading the marks aloud gives
nothing that a bird would answer, and yet two readers agree on what was sung.

Numbers help. In 1907 a teacher counted 3,412 phrases in one valley and found that four in ten
were copies of a neighbour's. "We borrow," she wrote, "and then we believe we invented." Her notes
cost 12.50 a volume; the second edition, printed in a smaller type, cost 7.

def phrases(marks, pause="."):
    """Split a song at its pauses, without the empty parts."""
    return [part for part in marks.split(pause) if part]


class Counter:
    def __init__(self, songs=()):
        self.seen = {}
        for song in songs:
            self.add(song)

    def add(self, song):
        for phrase in phrases(song):
            self.seen[phrase] = self.seen.get(phrase, 0) + 1

    def most_common(self, n=3):
        ranked = sorted(self.seen.items(), key=lambda item: (-item[1], item[0]))
        return ranked[:n]


if __name__ == "__main__":
    counter = Counter(["/\\\\/./\\\\", "//.\\\\\\\\./"])
    for phrase, count in counter.most_common():
        print(f"{phrase:>8} {count:3d}")

| day | songs | borrowed |
|-----|-------|----------|
| 1   | 120   | 0.41     |
| 2   | 98    | 0.38     |

{"valley": "east", "altitude_m": 640, "singers": [{"id": 1, "phrases": 14}, {"id": 2}]}

Was sie im Tal zählte, stand später in jedem Lehrbuch; était-ce vrai ? 谁也没有再数过。 Nobody
counted again. The hedge was cut in spring, the road was widened, and the song moved to a garden
wall, where it is still a short phrase, a pause, another last note. If you stand there early, listen
for the third repetition: it is the one that differs, and the one that the others will copy. What is
copied most is not what is simplest, and not what is loudest, but what comes just before silence.
'''
"""What the probes are cut from when the checkpoint has a tokenizer and no other text is given."""


_CHARACTERS = 64
"""Of a text, for each token of the longest probe: more than is needed, less than all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One sequence: int64 `(length,)`."""

    name: str
    token_ids: NDArray[np.int64]


def make_probes(
    *,
    vocab_size: int,
    context_length: int,
    tokenizer: Tokenizer | None,
    text: str | None = None,
    origin: str = "the text",
) -> list[Probe]:
    """Probes of growing length, each from another place of the text.

    Without a tokenizer the ids are random, from a fixed seed.

    Args:
        vocab_size: ids are below it.
        context_length: no probe is longer.
        tokenizer: the checkpoint's, if it has one.
        text: what to cut the probes from instead of `TEXT`.
        origin: where the text comes from, for messages.

    Raises:
        OptionError: the text is too short.
    """
    lengths = [min(length, context_length) for length in LENGTHS]
    if tokenizer is None:
        stream = np.random.default_rng(0).integers(0, vocab_size, sum(lengths))
    else:
        stream = _encode(tokenizer, text, origin, max(lengths))
    probes, start = [], 0
    for number, length in enumerate(lengths):
        start = start if start + length <= len(stream) else 0
        ids = stream[start : start + length]
        probes.append(Probe(name=f"{number}-{length}-tokens", token_ids=ids))
        start += length
    return probes


def _encode(tokenizer: Tokenizer, text: str | None, origin: str, longest: int) -> NDArray[np.int64]:
    """Ids of the text, repeated until the longest probe fits where the text is our own."""
    part = TEXT if text is None else text[: longest * _CHARACTERS]
    ids = np.array(tokenizer.encode(part), np.int64)
    if text is None and len(ids) > 0:
        ids = np.tile(ids, -(-longest // len(ids)))
    if len(ids) < longest:
        raise OptionError(
            f"{origin}: expected a text of at least {longest} tokens to judge by, got "
            f"{len(ids)}. Give a longer text."
        )
    return ids
