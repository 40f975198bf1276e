"""Time to the first token of a question after a system prompt, with and without prefix cache.

    ortolan export CHECKPOINT BUNDLE --precision int4
    python benchmarks/prefix.py BUNDLE [--system 1024] [--question 16] [--rounds 7] [--threads 2]

Three services alternate in one process: `cold` computes everything, `memory` copies the blocks of
the system prompt, `files` reads them from a folder in the page cache, as for the first request of a
new process. All must return the same tokens.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ortolan
from script import add_timing

NEW_TOKENS = 8


def make_prompts(vocab_size: int, system: int, question: int, count: int) -> Iterator[list[int]]:
    """Prompts with the same system prompt and different questions."""
    random = np.random.default_rng(0)
    ids = random.integers(0, vocab_size, system).tolist()
    for _ in range(count):
        yield [*ids, *random.integers(0, vocab_size, question).tolist()]


def print_first_tokens(model: ortolan.Decoder, prompts: list[list[int]], folder: str) -> None:
    """Print one row per way; the first prompt fills the caches."""
    ways: dict[str, dict[str, Any]] = {
        "cold": {"cache_bytes": 0},
        "memory": {"cache_bytes": 1 << 32},
        "files": {"cache_bytes": 0, "cache_folder": folder},
    }
    with model.serve(slots=2, **ways["files"]) as service:  # closing it writes all blocks
        service.submit(prompts[0], max_new_tokens=1).completion()
    services = {way: model.serve(slots=2, **options) for way, options in ways.items()}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number, prompt in enumerate(prompts):
        answers = []
        for way in ways if number % 2 else reversed(ways):
            done = services[way].submit(prompt, max_new_tokens=NEW_TOKENS).completion()
            answers.append(done.tokens)
            if number > 0:
                seconds[way].append(done.timings.time_to_first_token_s)
        if len(set(answers)) > 1:
            raise SystemExit(f"round {number}: the tokens differ: {answers}")
    print("| way | cached tokens | first token, ms | relative to cold | range, ms |")
    print("| --- | ---: | ---: | ---: | ---: |")
    cold = statistics.median(seconds["cold"])
    for way, taken in seconds.items():
        middle, cached = statistics.median(taken), services[way].stats().cached_tokens
        print(
            f"| {way} | {cached // (len(prompts) - (way == 'memory'))} | {1e3 * middle:.0f} "
            f"| {middle / cold:.1%} | {1e3 * min(taken):.0f}-{1e3 * max(taken):.0f} |"
        )
        services[way].close()


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--system", type=int, default=1024)
    parser.add_argument("--question", type=int, default=16)
    add_timing(parser, rounds=7)
    args = parser.parse_args()
    model = ortolan.load(args.bundle, ortolan.Decoder, threads=args.threads)
    prompts = make_prompts(model.manifest.vocab_size, args.system, args.question, args.rounds + 1)
    with tempfile.TemporaryDirectory() as folder:
        print_first_tokens(model, list(prompts), folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
