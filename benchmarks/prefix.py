"""Time to the first token of a question after a system prompt: cold, and with a prefix cache.

    python benchmarks/prefix.py BUNDLE [--system 1024] [--question 16] [--rounds 7]

Ways take turns in one process, in every other round in reverse: `cold` computes everything,
`memory` copies the blocks of the system prompt, `files` reads them from a folder whose files the
system has in memory. Each gives the same tokens. Then what the time with a cache goes into: copying
or reading the blocks, and computing the question.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.session import Engine
from ortolan.runtime.engine.slots import Slots
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.request import Request
from ortolan.runtime.generation.sampled_text import SampledText
from ortolan.runtime.serving.prefixes import PrefixCache

NEW_TOKENS = 8
WAYS = ("cold", "memory", "files")


class TimedCache(PrefixCache):
    """Adds up the time of looking up."""

    seconds = 0.0

    def fetch(self, ids: Sequence[int], slots: Slots, row: int) -> int:
        """Put the longest known beginning of a prompt into a row."""
        start = time.perf_counter()
        tokens = super().fetch(ids, slots, row)
        self.seconds = time.perf_counter() - start
        return tokens


def first_token(engine: Engine, generator: Generator, prompt: list[int]) -> tuple[float, list[int]]:
    """Seconds until the first token, and the tokens."""
    request = Request(prompt=prompt, prompt_tokens=len(prompt), limit=NEW_TOKENS)
    text = SampledText(request, vocab_size=engine.manifest.vocab_size, tokenizer=None)
    start = time.perf_counter()
    generator.submit(text)
    while not text.tokens:
        generator.round()
    seconds = time.perf_counter() - start
    generator.run()
    return seconds, text.tokens


def prompts(engine: Engine, system: int, question: int, rounds: int) -> Iterator[list[int]]:
    """The same system prompt each time, and another question."""
    random = np.random.default_rng(0)
    ids = random.integers(0, engine.manifest.vocab_size, system).tolist()
    for _ in range(rounds):
        yield [*ids, *random.integers(0, engine.manifest.vocab_size, question).tolist()]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--system", type=int, default=1024)
    parser.add_argument("--question", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    engine = Engine(open_bundle(given.bundle), threads=given.threads)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    looked_up: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        caches = {
            "cold": None,
            "memory": TimedCache(engine, exact=True, most_bytes=1 << 32),
            "files": TimedCache(engine, exact=True, most_bytes=0, folder=folder),
        }
        generators = {
            way: Generator(engine, slots=2, exact=True, prefixes=cache)
            for way, cache in caches.items()
        }
        every = prompts(engine, given.system, given.question, given.rounds + 1)
        for number, prompt in enumerate(every):
            tokens = []
            for way in WAYS if number % 2 else reversed(WAYS):
                cache = caches[way]
                took, answer = first_token(engine, generators[way], prompt)
                tokens.append(answer)
                if number > 0:  # the first fills the caches
                    seconds[way].append(took)
                    looked_up[way].append(0.0 if cache is None else cache.seconds)
                elif isinstance(cache, PrefixCache):
                    time.sleep(3)  # until everything is written
            if not tokens[0] == tokens[1] == tokens[2]:
                raise SystemExit(f"round {number}: expected equal tokens, got {tokens}")
        for cache in caches.values():
            if cache is not None:
                counts = cache.counts
                if counts.tokens != given.rounds * given.system:
                    raise SystemExit(f"expected hits in every round, got {counts}")
                cache.close()
    print("| way | first token, ms | of cold | range, ms | of it, the blocks, ms |")
    print("| --- | ---: | ---: | ---: | ---: |")
    cold = statistics.median(seconds["cold"])
    for way in WAYS:
        middle = statistics.median(seconds[way])
        print(
            f"| {way} | {1e3 * middle:.1f} | {middle / cold:.1%} "
            f"| {1e3 * min(seconds[way]):.1f}-{1e3 * max(seconds[way]):.1f} "
            f"| {1e3 * statistics.median(looked_up[way]):.1f} |"
        )


if __name__ == "__main__":
    main()
