"""Time of a decode step with adapters, relative to one without.

    ortolan export CHECKPOINT BUNDLE --precision int4
    python benchmarks/adapters.py BUNDLE [--rank 16] [--rows 1 4] [--rounds 20] [--threads 1]

Adapters are random, since speed depends on their shape only: of queries and values, as PEFT trains
by default, or of all linear layers. Each is loaded alone, and four at once. With `rows` rows, row
`n` uses adapter `n % 4 + 1` of four, or the only one.

Rounds alternate in one process; figures are medians. With one thread they are processor time, which
other load changes little.
"""

import argparse
import hashlib
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ortolan.runtime import open_bundle
from ortolan.runtime.bundle.adapter_folder import (
    BLOB,
    NAME,
    AdapterManifest,
    Factors,
    encode,
    write_factors,
)
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.manifest import File
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.runtime.engine.adapters import open_adapters
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.graph.adapters import adaptable_weights
from script import add_timing

PARTS: Mapping[str, Mapping[str, int]] = {
    "queries and values": {"attention.qkv": 2},
    "all linear layers": {"attention.qkv": 3, "attention.out": 1, "feed_forward": 1},
}
"""Matrices with an update in each weight, by a part of its name."""

STEPS = 4
"""Steps per round."""


def write_adapter(folder: Path, bundle: Bundle, parts: Mapping[str, int], rank: int) -> Path:
    """Write a random adapter of the weights whose names contain one of `parts`."""
    random, graphs = np.random.default_rng(0), bundle.manifest.graphs
    factors = {}
    for name, (outputs, inputs) in adaptable_weights(
        bundle.read(next(iter(graphs.values())).file)
    ).items():
        width = rank * next((count for part, count in parts.items() if part in name), 0)
        if width:
            first, second = random.random((inputs, width)), random.random((width, outputs))
            factors[name] = Factors(first.astype(np.float32) / 1e3, second.astype(np.float32) / 1e3)
    updates, blob = write_factors(factors)
    manifest = AdapterManifest(
        schema=1,
        bundle=fingerprint(bundle.manifest),
        source_sha256="0" * 64,
        modules=(),
        ranks=(rank,),
        updates=updates,
        files=(File(name=BLOB, size=len(blob), sha256=hashlib.sha256(blob).hexdigest()),),
    )
    folder.mkdir()
    (folder / BLOB).write_bytes(blob)
    (folder / NAME).write_bytes(encode(manifest))
    return folder


def stepper(engine: Engine, adapters: Sequence[int], *, prompt: int) -> Callable[[], None]:
    """A function that runs `STEPS` decode steps, with a row for each number of an adapter."""
    slots = engine.slots(len(adapters))
    slots.adapters[:] = adapters
    runner = Runner(engine, slots)
    for row in range(len(adapters)):
        runner.prefill(row, list(range(1, 1 + prompt)))
    runner.select(range(len(adapters)))

    def steps() -> None:
        for _ in range(STEPS):
            runner.step([1] * len(adapters))
        for row in range(len(adapters)):
            slots.rewind(prompt, row=row)

    return steps


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--prompt", type=int, default=128)
    add_timing(parser, rounds=20)
    args = parser.parse_args()
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    bundle = open_bundle(args.bundle)
    plain = Engine(bundle, threads=args.threads)
    print("| adapters of | loaded | rows | MB | a step, ms | with adapters | without one |")
    print("|---" * 7 + "|")
    for (what, parts), count in itertools.product(PARTS.items(), (1, 4)):
        with tempfile.TemporaryDirectory() as place:
            folder = write_adapter(Path(place) / "adapter", bundle, parts, args.rank)
            adapters = open_adapters(dict.fromkeys("abcd"[:count], folder), bundle)
            engine = Engine(bundle, threads=args.threads, adapters=adapters)
        for rows in args.rows:
            used = [row % count + 1 for row in range(rows)]
            ways = (
                stepper(plain, [0] * rows, prompt=args.prompt),
                stepper(engine, used, prompt=args.prompt),
                stepper(engine, [0] * rows, prompt=args.prompt),
            )
            times: list[list[float]] = [[] for _ in ways]
            for _ in range(args.rounds):
                for way, seconds in zip(ways, times, strict=True):
                    begun_at = clock()
                    way()
                    seconds.append((clock() - begun_at) / STEPS)
            base, own, none = map(statistics.median, times)
            megabytes = (adapters.size if adapters else 0) / 1e6
            print(
                f"| {what} | {count} | {rows} | {megabytes:.1f} | {1e3 * base:.2f} "
                f"| {own / base:.3f} | {none / base:.3f} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
