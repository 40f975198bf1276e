"""Print the share of prompts that the trained networks sort correctly, by length.

PYTHONPATH=models python -m sorting.lengths
"""

import random
from pathlib import Path

from tokenizers import Tokenizer

from copying.answering import right_share
from ortolan.modeling import TransformerModel, load

HERE = Path(__file__).parent

KINDS = ("attentive-rnn", "ntm", "transformer")

LENGTHS = (10, 11, 12, 13, 14, 16, 18, 20)

TEXTS = 250


def share(folder: Path, length: int) -> float:
    """Share of right answers to prompts of one length, the same prompts for every network."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rng = random.Random(f"sorting {length}")
    texts = []
    for _ in range(TEXTS):
        symbols = rng.choices("abcdefgh", k=length)
        words = [*symbols, "|", *sorted(symbols), "<end>"]
        texts.append((tokenizer.encode(" ".join(words)).ids, length + 1))
    return right_share(load(folder, TransformerModel), texts)


if __name__ == "__main__":
    for kind in KINDS:
        shares = (f"{length}: {share(HERE / kind, length):.1%}" for length in LENGTHS)
        print(kind, *shares, sep="  ")
