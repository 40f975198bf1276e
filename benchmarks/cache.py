"""Measure an 8-bit KV cache: memory, speed at a given length, and divergence.

    ortolan export CHECKPOINT FLOAT
    ortolan export CHECKPOINT INT8 --cache int8
    python benchmarks/cache.py FLOAT INT8 --lengths 4096,16384
    python benchmarks/cache.py FLOAT INT8 --lengths "" --checkpoint CHECKPOINT --text FILE

Times are medians of alternating runs: a decode step, and the last part of a prompt, after the given
number of tokens. On a busy machine, measure CPU time with `--cpu-time --threads 1`. The divergence
is that of the second bundle's logits from the first one's, over windows of a text.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from divergence import log_softmax
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner
from script import add_timing
from texts import spread

Clock = Callable[[], float]
Engines = tuple[Engine, Engine]

NEW_TOKENS = 256
"""Tokens of the timed part of a prompt."""

STEPS = 8
"""Decode steps per measurement."""


def full(engine: Engine, length: int) -> Runner:
    """A runner whose only row has room for `length` tokens, in memory that was written."""
    runner = Runner(engine, engine.slots())
    runner.reserve(length)
    for _, buffer, _ in runner.slots.bound(slice(0, 1)):
        buffer.fill(1)  # untouched pages would all be the same physical page
    return runner


def step_seconds(runner: Runner, length: int, clock: Clock) -> float:
    """Seconds per decode step at `length` tokens."""
    runner.slots.lengths[0] = length - STEPS - 1
    runner.select([0])
    runner.step([5])
    start = clock()
    for _ in range(STEPS):
        runner.step([5])
    return (clock() - start) / STEPS


def prompt_seconds(runner: Runner, length: int, clock: Clock) -> float:
    """Seconds per token of the last part of a prompt of `length` tokens."""
    runner.slots.lengths[0] = length - NEW_TOKENS
    start = clock()
    runner.prefill(0, [5] * NEW_TOKENS)
    return (clock() - start) / NEW_TOKENS


def print_speed(engines: Engines, lengths: list[int], rounds: int, clock: Clock) -> None:
    """Print one row per length."""
    print("| tokens | cache, MB | ms a step | prompt, tok/s |")
    print("| ---: | ---: | ---: | ---: |")
    for length in lengths:
        runners = [full(engine, length) for engine in engines]
        steps, prompts = (
            [[time(runner, length, clock) for runner in runners] for _ in range(rounds)]
            for time in (step_seconds, prompt_seconds)
        )
        memory = [engine.manifest.state_bytes("append") * length / 1e6 for engine in engines]
        ms = [1e3 * statistics.median(column) for column in zip(*steps, strict=True)]
        rate = [1 / statistics.median(column) for column in zip(*prompts, strict=True)]
        cells = (f"{a:.1f}, {b:.1f}: {b / a:.2f}" for a, b in (memory, ms, rate))
        print(f"| {length} | {' | '.join(cells)} |", flush=True)


def divergences(
    engines: Engines, ids: list[int]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """KL divergence at each position of a text, and whether the likeliest token is the same."""
    runners = [Runner(engine, engine.slots()) for engine in engines]
    for start in range(0, len(ids), NEW_TOKENS):
        part = ids[start : start + NEW_TOKENS]
        exact, other = (
            log_softmax(runner.chunk(0, part, positions=range(len(part)))) for runner in runners
        )
        yield (np.exp(exact) * (exact - other)).sum(-1), exact.argmax(-1) == other.argmax(-1)


def print_divergence(engines: Engines, windows: list[tuple[int, ...]]) -> None:
    """Print the means over all windows, and over their last quarters."""
    kl, last, same = [], [], []
    for ids in windows:
        parts = list(divergences(engines, list(ids)))
        of_window = np.concatenate([part for part, _ in parts])
        kl.append(of_window.mean())
        last.append(of_window[-len(of_window) // 4 :].mean())
        same.append(np.concatenate([part for _, part in parts]).mean())
    print(
        f"{len(windows)} windows of {len(windows[0])} tokens: mean KL {np.mean(kl):.5f}, in the "
        f"last quarters {np.mean(last):.5f}, top-1 {np.mean(same):.4f}"
    )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("float_bundle", type=Path)
    parser.add_argument("int8_bundle", type=Path)
    parser.add_argument("--lengths", default="4096,16384", help="token counts, comma-separated")
    parser.add_argument("--checkpoint", type=Path, help="source of the tokenizer for --text")
    parser.add_argument("--text", type=Path, action="append", default=[], help="repeatable")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--window", type=int, default=2048)
    add_timing(parser, rounds=5)
    parser.add_argument("--cpu-time", action="store_true", help="measure CPU time")
    args = parser.parse_args()
    first, second = (
        Engine(open_bundle(path), threads=args.threads)
        for path in (args.float_bundle, args.int8_bundle)
    )
    lengths = [int(length) for length in args.lengths.split(",") if length]
    states = (*first.manifest.states, *second.manifest.states)
    if lengths and any(state.window is not None for state in states):
        parser.error('states with a sliding window hold no whole text; pass --lengths ""')
    if lengths:
        print_speed(
            (first, second),
            lengths,
            args.rounds,
            time.process_time if args.cpu_time else time.perf_counter,
        )
    if args.text:
        text = spread(args.checkpoint, args.text, windows=args.windows, window=args.window)
        print_divergence((first, second), list(text.documents))
    return 0


if __name__ == "__main__":
    sys.exit(main())
