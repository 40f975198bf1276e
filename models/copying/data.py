"""Symbols to copy once or several times (Graves et al. 2014, sections 4.1 and 4.2).

copy c a f |                c a f
repeat c a f 2 |            c a f c a f
"""

import random
from itertools import islice

from ortolan.modeling.training import Answers, Pair

SYMBOLS = "abcdefgh"


def read(
    *, longest: int = 10, repeats: int = 3, texts: int = 60_000, held_out: int = 250, seed: int = 0
) -> Answers:
    """Training texts of up to `longest` symbols, and two held-out sets per kind.

    Prompts of the sets `*_double` are twice as long as the longest of training.
    """
    rng = random.Random(seed)
    kinds = ("copy", "repeat")
    measured = {
        f"{kind}_{name}": [_text(rng, kind, shortest, most, repeats) for _ in range(held_out)]
        for name, shortest, most in (("trained", 1, longest), ("double", 2 * longest, 2 * longest))
        for kind in kinds
    }
    # There are few distinct short texts, so they occur in both.
    seen = {pair for pairs in measured.values() for pair in pairs if len(pair[1]) > 10}
    drawn = (_text(rng, rng.choice(kinds), 1, longest, repeats) for _ in range(2 * texts))
    train = list(islice((pair for pair in drawn if pair not in seen), texts))
    return Answers(train=train, held_out=measured)


def _text(rng: random.Random, kind: str, shortest: int, longest: int, repeats: int) -> Pair:
    symbols = " ".join(rng.choices(SYMBOLS, k=rng.randint(shortest, longest)))
    if kind == "copy":
        return f"copy {symbols} |", symbols
    times = rng.randint(1, repeats)
    return f"repeat {symbols} {times} |", " ".join([symbols] * times)
