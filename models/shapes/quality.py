"""Answers of bundles and of PyTorch, in `models`: python -m shapes.quality BUNDLE...

Prints, for each, the share of right answers by kind of question, on scenes whose pairs of shape and
color are all known, and on scenes with a pair that training never showed.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, LlavaForConditionalGeneration

import ortolan

from .scenes import Example, examples, kind_of
from .train import BOS, IMAGE, MEAN, STD, VECTORS

HERE = Path(__file__).parent

COUNT = 500

SEEDS = {"known": (1001, False), "unseen": (1002, True)}

NEW_TOKENS = 24

Answer = Callable[[Sequence[Example]], list[str]]


def by_bundle(path: str) -> Answer:
    """Answers of a bundle, in one batch."""
    model = ortolan.load(path, ortolan.Decoder)

    def answer(asked: Sequence[Example]) -> list[str]:
        prompts = [[{"image": np.asarray(e.picture)}, e.question] for e in asked]
        answers: list[str] = []
        for start in range(0, len(prompts), 100):
            part = prompts[start : start + 100]
            done = model.generate(part, n=1, max_new_tokens=NEW_TOKENS)
            answers += [completion.text.strip() for completion in done]
        return answers

    return answer


def by_pytorch(folder: Path = HERE) -> Answer:
    """Answers of transformers' own model, one by one."""
    model: Any = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def answer(asked: Sequence[Example]) -> list[str]:
        answers = []
        for example in asked:
            text = f"{BOS}{IMAGE * VECTORS}{example.question}"
            ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
            pixels = (np.asarray(example.picture) / 255 - MEAN) / STD
            given = torch.tensor(pixels.transpose(2, 0, 1)[None], dtype=torch.float32)
            with torch.inference_mode():
                out = model.generate(
                    input_ids=ids, pixel_values=given, max_new_tokens=NEW_TOKENS, do_sample=False
                )
            new = out[0, ids.shape[1] :].tolist()
            answers.append(tokenizer.decode(new, skip_special_tokens=True).strip())
        return answers

    return answer


def asked(name: str, count: int = COUNT) -> list[Example]:
    """Held-out examples of one of `SEEDS`."""
    seed, unseen = SEEDS[name]
    return list(islice(examples(seed, unseen=unseen), count))


def accuracy(drawn: Sequence[Example], answers: Sequence[str]) -> dict[str, float]:
    """The share of right answers, by kind of question and in all."""
    right, total = Counter[str](), Counter[str]()
    for example, given in zip(drawn, answers, strict=True):
        for name in ("all", kind_of(example.question)):
            total[name] += 1
            right[name] += given == example.answer
    return {name: right[name] / total[name] for name in sorted(total)}


def main(paths: Sequence[str]) -> None:
    """Print a table."""
    ways = {"PyTorch": by_pytorch(), **{path: by_bundle(path) for path in paths}}
    for name in SEEDS:
        drawn, first = asked(name), None
        for way, answer in ways.items():
            given = answer(drawn)
            first = first or given
            equal = np.mean([a == b for a, b in zip(first, given, strict=True)])
            figures = ", ".join(f"{k} {v:.1%}" for k, v in accuracy(drawn, given).items())
            print(f"{name}, {way}: {figures}; {equal:.1%} as PyTorch", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
