"""Changes bundles at random, and uses each one with the JavaScript package in WebAssembly.

    python -m tests.hostile.fuzz_js --seed 7 --count 1000

A bundle must work or be refused with a typed error; a death, a hang, another error, or states that
are left are findings.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.hostile import bundles, command, mutants
from tests.hosts.node_package import installed_package

KINDS = (
    *("decoder", "recurrent", "encoder", "embedder", "image-encoder"),
    *("exported-decoder", "exported-listener", "exported-speller", "exported-seq2seq"),
)

HARMLESS = ("used", "refused")


def outcomes(folder: Path) -> list[dict[str, Any]]:
    """What became of each bundle in a folder."""
    package = installed_package()
    line = ["node", str(package / "test" / "mutants.mjs"), str(folder)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def fuzz(originals: Path, work: Path, seed: int, count: int) -> list[dict[str, Any]]:
    """Use mutants of all kinds in turn, print a table, and return the findings."""
    files = {kind: bundles.read(originals, kind) for kind in KINDS}
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        name = f"{kind}/{seed}/{number if number >= len(KINDS) else '-'}"
        mutants.write(mutants.mutant(files[kind], name).files, work / name.replace("/", "."))
    table = {kind: Counter[str]() for kind in KINDS}
    findings: list[dict[str, Any]] = []
    for outcome in outcomes(work):
        table[outcome["name"].partition(".")[0]][outcome["outcome"]] += 1
        if outcome["outcome"] not in HARMLESS or (
            outcome["name"].endswith(".-") and outcome["outcome"] != "used"
        ):
            command.add_finding(findings, **outcome)
    for kind, counts in table.items():
        print(kind.ljust(20), dict(counts))
    return findings


def main() -> int:
    options = command.parser(__doc__, count=1000).parse_args()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as work:
        os.environ["XDG_STATE_HOME"] = work
        bundles.write(options.bundles, KINDS)
        seed = command.pick_seed(options.seed)
        return int(bool(fuzz(options.bundles, Path(work) / "mutants", seed, options.count)))


if __name__ == "__main__":
    sys.exit(main())
