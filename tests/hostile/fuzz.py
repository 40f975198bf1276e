"""Changes bundles at random and uses each one in a child process.

    python -m tests.hostile.fuzz --seed 7 --count 20000
    python -m tests.hostile.fuzz --only decoder/7/123 --keep build/mutant

A bundle must work or be refused with a typed error; anything else is a finding. A finding can be
reproduced from its name.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile import bundles, child, command, mutants
from tests.hostile.usage import use

STAGES = ("open", "load", "use")
"""Stages at which a bundle may be refused; later ones count as use."""

COLUMNS = ("loaded", *(f"refused at {stage}" for stage in STAGES), *child.OUTCOMES[2:])


class Fuzzer:
    """Makes mutants and runs them.

    Args:
        folder: of the original bundles.
        work: folder for mutants, preferably in memory.
    """

    def __init__(self, folder: Path, work: Path) -> None:
        self._folder = folder
        self._work = work
        self._originals: dict[str, bundles.Files] = {}
        self._usual_mb: dict[str, int] = {}

    def original(self, kind: str) -> bundles.Files:
        """Return the files of an unchanged bundle, after checking that it works."""
        if kind not in self._originals:
            self._originals[kind] = bundles.read(self._folder, kind)
            outcome = self.run(self.mutant(f"{kind}/0/-"))
            if outcome.kind != "loaded":
                raise RuntimeError(f"the unchanged bundle {kind} does not work: {outcome}")
            self._usual_mb[kind] = outcome.memory_mb
        return self._originals[kind]

    def mutant(self, name: str) -> mutants.Mutant:
        return mutants.mutant(self.original(name.partition("/")[0]), name)

    def run(self, mutant: mutants.Mutant) -> child.Outcome:
        folder = self._work / "bundle"
        shutil.rmtree(folder, ignore_errors=True)
        mutants.write(mutant.files, folder)
        random = Random(mutant.name)
        return child.run(
            # the certificate of a handmade bundle is that of another model
            lambda say: use(folder, random, say, verifies=bool(mutant.changes)),
            self._work / "log",
            usual_mb=self._usual_mb.get(mutant.kind, 1 << 20),
        )


def fuzz(fuzzer: Fuzzer, kinds: tuple[str, ...], seed: int, count: int) -> list[dict[str, Any]]:
    """Run mutants of all kinds in turn, print a table, and return the findings."""
    table = {kind: Counter[str]() for kind in kinds}
    findings: list[dict[str, Any]] = []
    started = time.monotonic()
    for number in range(count):
        kind = kinds[number % len(kinds)]
        mutant = fuzzer.mutant(f"{kind}/{seed}/{number}")
        outcome = fuzzer.run(mutant)
        stage = outcome.stage if outcome.stage in STAGES else STAGES[-1]
        table[kind][f"refused at {stage}" if outcome.kind == "refused" else outcome.kind] += 1
        if outcome.is_finding:
            command.add_finding(findings, **_description(mutant, outcome))
    seconds = time.monotonic() - started
    _print_table(table)
    print(f"{count} mutants in {seconds:.0f} s, {count / max(seconds, 0.001):.0f} a second")
    return findings


def _description(mutant: mutants.Mutant, outcome: child.Outcome) -> dict[str, Any]:
    return {
        "name": mutant.name,
        "kind": outcome.kind,
        "stage": outcome.stage,
        "message": outcome.message,
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
    parser = command.parser(__doc__, count=20_000)
    parser.add_argument("--kinds", nargs="*", default=bundles.KINDS, choices=bundles.KINDS)
    parser.add_argument("--only", help="name of one mutant")
    parser.add_argument("--keep", type=Path, help="with --only: new folder for the mutant")
    options = parser.parse_args()
    kinds = (options.only.partition("/")[0],) if options.only else tuple(options.kinds)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as work:
        os.environ["XDG_STATE_HOME"] = work  # holds the key of packed weights
        bundles.write(options.bundles, kinds)
        fuzzer = Fuzzer(options.bundles, Path(work))
        if not options.only:
            return int(bool(fuzz(fuzzer, kinds, command.pick_seed(options.seed), options.count)))
        mutant = fuzzer.mutant(options.only)
        if options.keep is not None:
            mutants.write(mutant.files, options.keep)
        outcome = fuzzer.run(mutant)
        print(json.dumps(_description(mutant, outcome), indent=1))
        return int(outcome.is_finding)


if __name__ == "__main__":
    sys.exit(main())
