"""Symbols to sort.

c a f a |                a a c f
"""

import random
from itertools import islice

from ortolan.modeling.training import Answers, Pair

SYMBOLS = "abcdefgh"


def read(*, longest: int = 10, texts: int = 60_000, held_out: int = 500, seed: int = 0) -> Answers:
    """Training texts of up to `longest` symbols, and two held-out sets, `double` twice as long."""
    rng = random.Random(seed)
    measured = {
        "trained": [_text(rng, 1, longest) for _ in range(held_out)],
        "double": [_text(rng, 2 * longest, 2 * longest) for _ in range(held_out)],
    }
    # There are few distinct short texts, so they occur in both.
    seen = {pair for pair in measured["trained"] if len(pair[1]) > 10}
    drawn = (_text(rng, 1, longest) for _ in range(2 * texts))
    train = list(islice((pair for pair in drawn if pair not in seen), texts))
    return Answers(train=train, held_out=measured)


def _text(rng: random.Random, shortest: int, longest: int) -> Pair:
    symbols = rng.choices(SYMBOLS, k=rng.randint(shortest, longest))
    return f"{' '.join(symbols)} |", " ".join(sorted(symbols))
