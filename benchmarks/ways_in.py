"""Compare a family's bundle with one of the same checkpoint exported by way of transformers.

    python benchmarks/make_checkpoint.py 135m CHECKPOINT
    python benchmarks/ways_in.py CHECKPOINT WORK [--rounds N]

Exports both in float32 and in 4 bits, unless WORK has them already. Prints the speed of the second
relative to the first for decoding after a context and for prefill: medians over alternating rounds,
in wall-clock time and in CPU time, which other programs disturb less.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from ortolan.export.options import ExportOptions, Int4, Precision, Via
from ortolan.export.pipeline import export
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner
from script import count, exit_status

# Rounding needs no calibration, and the kernels are the same.
PRECISIONS: dict[str, Precision] = {"fp32": "fp32", "int4": Int4(method="rtn")}

WAYS: tuple[Via, ...] = ("family", "transformers")

Times = tuple[float, float]
"""Seconds of wall-clock time and of CPU time."""


class Measured:
    """One loaded bundle."""

    def __init__(self, folder: Path, context: int, prompt: int, steps: int, threads: int) -> None:
        bundle = open_bundle(folder)
        self.nodes = sum(sum(graph.operators.values()) for graph in bundle.graphs.values())
        self.engine = Engine(bundle, threads=threads)
        random = np.random.default_rng(0)
        draw = random.integers(2, bundle.manifest.vocab_size, context + prompt).tolist()
        self.context, self.prompt, self.steps = draw[:context], draw[context:], steps

    def decode(self) -> Times:
        """Time of decode steps after the context."""
        runner = Runner(self.engine, self.engine.slots())
        runner.prefill(0, self.context)
        runner.select([0])
        runner.step([5])  # the first step binds buffers
        start = now()
        for token in range(self.steps):
            runner.step([5 + token])
        return since(start)

    def prefill(self) -> Times:
        """Time to prefill the prompt in one call."""
        runner = Runner(self.engine, self.engine.slots())
        start = now()
        runner.chunk(0, self.prompt, positions=[len(self.prompt) - 1])
        return since(start)


def now() -> Times:
    """Current time of both clocks."""
    return time.perf_counter(), time.process_time()


def since(start: Times) -> Times:
    """Seconds since `start`, by both clocks."""
    clock, cpu = now()
    return clock - start[0], cpu - start[1]


def exported(checkpoint: Path, work: Path, way: Via, precision: str) -> Path:
    """The bundle of one way in, exported unless it exists."""
    out = work / f"{way}-{precision}"
    if not out.exists():
        options = ExportOptions(via=way)
        export(checkpoint, out, precision=PRECISIONS[precision], options=options)
    return out


def shares(bundles: dict[Via, Measured], task: str, rounds: int) -> list[Times]:
    """Relative speed of the second way in each round."""
    ratios = []
    for number in range(rounds + 1):
        order = WAYS if number % 2 == 0 else WAYS[::-1]
        taken = {way: getattr(bundles[way], task)() for way in order}
        if number > 0:  # the first round warms up
            family, other = taken["family"], taken["transformers"]
            ratios.append((family[0] / other[0], family[1] / other[1]))
    return ratios


def work(args: argparse.Namespace) -> None:
    """Export, measure and print."""
    print("| precision | task | nodes | by the clock | by CPU time |")
    print("| --- | --- | ---: | ---: | ---: |")
    for precision in args.precisions:
        folders = {way: exported(args.checkpoint, args.work, way, precision) for way in WAYS}
        bundles = {
            way: Measured(folder, args.context, args.prompt, args.steps, args.threads)
            for way, folder in folders.items()
        }
        nodes = " and ".join(str(bundles[way].nodes) for way in WAYS)
        for task in ("decode", "prefill"):
            clock, cpu = zip(*shares(bundles, task, args.rounds), strict=True)
            medians = f"{statistics.median(clock):.3f} | {statistics.median(cpu):.3f}"
            print(f"| {precision} | {task} | {nodes} | {medians} |", flush=True)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--context", type=count, default=128, help="tokens before the steps")
    parser.add_argument("--prompt", type=count, default=128, help="tokens of the prompt")
    parser.add_argument("--steps", type=count, default=16)
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("-r", "--rounds", type=count, default=11)
    return exit_status(work, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
