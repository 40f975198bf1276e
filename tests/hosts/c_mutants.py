"""Changed bundles, with changed inputs, in the C library under sanitizers.

    python -m tests.hosts.c_mutants --count 3000 [--seed 7] [--only decoder/7/123]

Each must work or be refused with a typed error. Graphs stay as they are: C passes them to
onnxruntime, and its guide says to verify those from an untrusted source in Python first.
"""

import argparse
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from tests.hostile import bundles, file_changes, mutants
from tests.hosts import conformance
from tests.hosts.c_library import SANITIZED, SANITIZERS, Built, build

KINDS = ("decoder", "recurrent decoder", "embeddings", "labels", "marian", "whisper")


BATCH = 50
"""Mutants of a process, most of whose time is its start."""


def write_mutant(originals: dict[str, bundles.Files], name: str, folder: Path) -> None:
    areas = mutants._AREAS
    others = {
        "graph": areas["tokenizer"],
        "bytes": areas["weights"],
        "manifest": (60, areas["manifest"][1]),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mutants, "_graph", file_changes.change_weights)
        patch.setattr(mutants, "_AREAS", areas | others)
        mutant = mutants.mutant(originals[name.partition("/")[0]], name)
    mutants.write(mutant.files, folder)


def outcomes(built: Built, folder: Path, kinds: tuple[str, ...], names: list[str]) -> Counter[str]:
    """Run the mutants of some names, and count what became of them.

    Raises:
        AssertionError: one died, or had an error without code or message.
        TimeoutExpired: one did not end.
    """
    originals = {
        kind: bundles.read(conformance.BUNDLES[kind](folder / f"{number}"), ".")
        for number, kind in enumerate(kinds)
    }
    results = Counter[str]()
    for start in range(0, len(names), BATCH):
        work = folder / "mutants"
        shutil.rmtree(work, ignore_errors=True)
        paths = [work / name for name in names[start : start + BATCH]]
        for path in paths:
            write_mutant(originals, str(path.relative_to(work)), path)
        done = built.run("exercise", start, *paths)
        assert done.returncode == 0, (done.stdout[-300:], done.stderr[-3000:])
        for part in done.stdout.split("# ")[1:]:
            place, opened, *calls = part.splitlines()
            kind = Path(place).relative_to(work).parts[0]
            results[f"{kind}: {opened}"] += 1
            results.update(f"a call: {call.split()[-1]}" for call in calls)
    return results


def main() -> None:
    """Run mutants of all kinds in turn, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only")
    args = parser.parse_args()
    names = [f"{KINDS[i % len(KINDS)]}/{args.seed}/{i}" for i in range(args.count)]
    with tempfile.TemporaryDirectory() as folder:
        built = build(Path(folder) / "c", *SANITIZED)._replace(environment=SANITIZERS)
        results = outcomes(built, Path(folder), KINDS, [args.only] if args.only else names)
    for what, count in sorted(results.items()):
        print(f"{count:6} {what}")


if __name__ == "__main__":
    main()
