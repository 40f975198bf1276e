"""Find the number of new tokens from which the int8 prefill graph of a split bundle is faster.

    ortolan export CHECKPOINT BUNDLE --precision int4 --graphs split --prefill-precision int8
    python benchmarks/prefill_threshold.py BUNDLE

Prints the time of one step of each graph after a context, medians of alternating runs. The result
is `min_new_tokens` in the manifest (docs/adr/0006-int8-prefill.md).
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner
from script import add_timing

NEW_TOKENS = (1, 2, 4, 8, 12, 16, 24, 32, 64, 128)


def used_from(bundle: Bundle, new_tokens: int) -> Bundle:
    """The same bundle with another `min_new_tokens` for its prefill graph."""
    graphs = dict(bundle.manifest.graphs)
    graphs["prefill"] = msgspec.structs.replace(graphs["prefill"], min_new_tokens=new_tokens)
    manifest = msgspec.structs.replace(bundle.manifest, graphs=graphs)
    return Bundle(path=bundle.path, manifest=manifest, graphs=bundle.graphs)


def seconds(engine: Engine, context: int, ids: list[int]) -> float:
    """Time of one step after a context."""
    runner = Runner(engine, engine.slots())
    runner.prefill(0, [5] * context)
    start = time.perf_counter()
    runner.chunk(0, ids, positions=[len(ids) - 1])
    return time.perf_counter() - start


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--context", type=int, default=128)
    add_timing(parser, rounds=7)
    args = parser.parse_args()
    bundle = open_bundle(args.bundle)
    engines = {
        "decode": Engine(used_from(bundle, bundle.manifest.context_length), threads=args.threads),
        "prefill": Engine(used_from(bundle, 1), threads=args.threads),
    }
    random = np.random.default_rng(0)
    print("| new tokens | decode graph, ms | prefill graph, ms |")
    print("| ---: | ---: | ---: |")
    for count in NEW_TOKENS:
        ids = random.integers(0, bundle.manifest.vocab_size, count).tolist()
        times: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(args.rounds + 1):
            order = list(engines) if number % 2 == 0 else list(engines)[::-1]
            for name in order:
                taken = seconds(engines[name], args.context, ids)
                if number > 0:
                    times[name].append(taken)
        medians = [1000 * statistics.median(times[name]) for name in ("decode", "prefill")]
        print(f"| {count} | {medians[0]:.1f} | {medians[1]:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
