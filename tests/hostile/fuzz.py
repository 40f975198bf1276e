"""Changes bundles at random, uses each in a process of its own, and says how it ended.

    python -m tests.hostile.fuzz --seed 7 --count 20000
    python -m tests.hostile.fuzz --only decoder/7/123 --keep build/mutant

A finding is anything but a bundle that works and a typed error: see `child.OUTCOMES`. Its name is
all that it takes to make it again, as long as nobody changes the bundles or the changes.
"""

import argparse
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from tests.hostile import bundles, child, mutants
from tests.hostile.uses import use

ROOT = Path(__file__).parents[2]

STAGES = ("open", "load", "use")
"""Where a bundle may be refused; what comes later counts as use."""

COLUMNS = ("loaded", *(f"refused at {stage}" for stage in STAGES), *child.OUTCOMES[2:])


class Fuzzer:
    """Mutants of some bundles, one after the other.

    Args:
        folder: of the bundles.
        work: to write mutants to; memory rather than a disk.
    """

    def __init__(self, folder: Path, work: Path) -> None:
        self._folder = folder
        self._work = work
        self._originals: dict[str, bundles.Files] = {}
        self._usual_mb: dict[str, int] = {}

    def original(self, kind: str) -> bundles.Files:
        """The files of a bundle that is not changed, once it is known to work."""
        if kind not in self._originals:
            self._originals[kind] = bundles.read(self._folder, kind)
            outcome = self.run(self.mutant(f"{kind}/0/-"))
            if outcome.kind != "loaded":
                raise RuntimeError(f"{kind}: expected a bundle that works, got {outcome}")
            self._usual_mb[kind] = outcome.memory_mb
        return self._originals[kind]

    def mutant(self, name: str) -> mutants.Mutant:
        return mutants.mutant(self.original(name.partition("/")[0]), name)

    def run(self, mutant: mutants.Mutant) -> child.Outcome:
        """Use a mutant in a child."""
        folder = self._work / "bundle"
        shutil.rmtree(folder, ignore_errors=True)
        mutants.write(mutant.files, folder)
        random = Random(mutant.name)
        return child.run(
            # what is made by hand has the certificate of something else
            lambda say: use(folder, random, say, verifies=bool(mutant.changes)),
            self._work / "log",
            usual_mb=self._usual_mb.get(mutant.kind, 1 << 20),
        )


def fuzz(fuzzer: Fuzzer, kinds: tuple[str, ...], seed: int, count: int) -> list[dict[str, object]]:
    """Run mutants of all kinds in turn, print the table, and give the findings."""
    table = {kind: Counter[str]() for kind in kinds}
    findings: list[dict[str, object]] = []
    started = time.monotonic()
    for number in range(count):
        kind = kinds[number % len(kinds)]
        mutant = fuzzer.mutant(f"{kind}/{seed}/{number}")
        outcome = fuzzer.run(mutant)
        stage = outcome.stage if outcome.stage in STAGES else STAGES[-1]
        table[kind][f"refused at {stage}" if outcome.kind == "refused" else outcome.kind] += 1
        if outcome.is_finding:
            findings.append(_told(mutant, outcome))
            print(json.dumps(findings[-1]), flush=True)
    seconds = time.monotonic() - started
    _print_table(table)
    print(f"{count} mutants in {seconds:.0f} s, {count / max(seconds, 0.001):.0f} a second")
    return findings


def _told(mutant: mutants.Mutant, outcome: child.Outcome) -> dict[str, object]:
    return {
        "name": mutant.name,
        "kind": outcome.kind,
        "stage": outcome.stage,
        "said": outcome.said,
        "seconds": round(outcome.seconds, 1),
        "memory_mb": outcome.memory_mb,
        "changes": mutant.changes,
    }


def _print_table(table: dict[str, Counter[str]]) -> None:
    total: Counter[str] = sum(table.values(), Counter())
    width = max(map(len, table))
    print(" | ".join([" " * width, *COLUMNS]))
    for kind, counts in [*table.items(), ("all", total)]:
        cells = [f"{counts[column]:>{len(column)}}" for column in COLUMNS]
        print(" | ".join([kind.ljust(width), *cells]))


def main() -> int:
    """Run as the arguments say; 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, help="a new one by default")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--kinds", nargs="*", default=bundles.KINDS, choices=bundles.KINDS)
    parser.add_argument("--only", help="the name of one mutant")
    parser.add_argument("--keep", type=Path, help="with --only: a new folder for the mutant")
    parser.add_argument("--bundles", type=Path, default=ROOT / "build" / "hostile")
    given = parser.parse_args()
    kinds = (given.only.partition("/")[0],) if given.only else tuple(given.kinds)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as work:
        os.environ["XDG_STATE_HOME"] = work  # the key of what is packed here
        bundles.write(given.bundles, kinds)
        fuzzer = Fuzzer(given.bundles, Path(work))
        if given.only:
            mutant = fuzzer.mutant(given.only)
            if given.keep is not None:
                mutants.write(mutant.files, given.keep)
            outcome = fuzzer.run(mutant)
            print(json.dumps(_told(mutant, outcome), indent=1))
            return int(outcome.is_finding)
        seed = secrets.randbelow(1 << 32) if given.seed is None else given.seed
        print(f"seed {seed}", flush=True)
        return int(bool(fuzz(fuzzer, kinds, seed, given.count)))


if __name__ == "__main__":
    sys.exit(main())
