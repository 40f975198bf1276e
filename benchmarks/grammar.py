"""Measure what a grammar adds to the time per token.

    python benchmarks/grammar.py --bundle build/pythonic

Texts with a JSON schema, with a grammar that allows anything and without one alternate, at the same
number of tokens. Prints the median CPU time per token in milliseconds, on one thread.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from ortolan.runtime import Decoder, Grammar, Sampling, load

PROMPT = "A list of users as JSON:\n"
USER = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 2},
        "active": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "active"],
    "additionalProperties": False,
}
GRAMMARS = {
    "none": None,
    "schema": Grammar.json_schema({"type": "array", "items": USER, "minItems": 50}),
    "anything": Grammar.regex(r"(.|\n)*"),
}
CHOICES = {"likeliest": Sampling(), "top-p 0.9": Sampling(temperature=0.7, top_p=0.9, seed=1)}


def milliseconds(model: Decoder, grammar: Grammar | None, choice: Sampling, tokens: int) -> float:
    """CPU time per token."""
    begun_at = time.process_time()
    done = model.generate(
        PROMPT, max_new_tokens=tokens, ignore_eos=True, grammar=grammar, sampling=choice
    )
    return 1e3 * (time.process_time() - begun_at) / len(done.tokens)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure the cost of a grammar.")
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("-r", "--rounds", type=int, default=8)
    args = parser.parse_args(arguments)
    model = load(args.bundle, Decoder, threads=1)
    print("| |" + "".join(f" {name} |" for name in GRAMMARS))
    print("|---|" + "---|" * len(GRAMMARS))
    for name, choice in CHOICES.items():
        for grammar in GRAMMARS.values():  # warm up
            milliseconds(model, grammar, choice, args.tokens)
        rounds = [
            [milliseconds(model, grammar, choice, args.tokens) for grammar in GRAMMARS.values()]
            for _ in range(args.rounds)
        ]
        times = [median(column) for column in zip(*rounds, strict=True)]
        print(f"| {name} |" + "".join(f" {ms:.2f} ms |" for ms in times))


if __name__ == "__main__":
    main()
