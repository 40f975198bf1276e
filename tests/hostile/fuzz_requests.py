"""Asks models random things, and sees that each is answered or refused with a typed error.

    python -m tests.hostile.fuzz_requests --seed 7 --count 10000
    python -m tests.hostile.fuzz_requests --only decoder/7/123

After every refusal, and every tenth answer, a fixed request must give what it gave at first.
"""

import argparse
import json
import secrets
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile import bundles, child
from tests.hostile.arguments import CallersError
from tests.hostile.asked import TARGETS, Target
from tests.hostile.fuzz import ROOT

import ortolan
from ortolan.errors import OrtolanError

ROUND = 200
"""Requests of one process."""

ALLOWED = (OrtolanError, CallersError, TimeoutError)
"""Errors of ours, of a function that was given, and of a timeout that was given."""


class WrongError(Exception):
    """A request changed what a later one gives."""


def ask(target: Target, model: Any, names: list[str], say: child.Say) -> None:
    """Make requests, one after the other.

    Raises:
        WrongError: the probe gives something else afterwards.
        Exception: whatever a request raised that is no typed error.
    """
    made = target.open(model)
    expected = target.probe(made)
    for number, name in enumerate(names):
        say(name)
        random = Random(name)
        refused = False
        try:
            target.asks[random.choice(list(target.asks))](made, random)
        except ALLOWED as error:
            refused = True
            text = f"{error}"
            if not text:
                raise WrongError("an error without a text") from error
        if refused or number % 10 == 0:
            got = target.probe(made)
            if got != expected:
                raise WrongError(f"expected {expected}, got {got}")
        say("refused" if refused else "answered")
    target.close(made)


def _round(target: Target, bundle: Path, names: list[str], say: child.Say) -> None:
    ask(target, ortolan.load(bundle, threads=1), names, say)


def fuzz(folder: Path, names: dict[str, list[str]], log: Path) -> list[dict[str, object]]:
    """Make requests by name, by target; print the table, and give the findings."""
    findings: list[dict[str, object]] = []
    started = time.monotonic()
    for kind, all_of_it in names.items():
        target, waiting = TARGETS[kind], list(all_of_it)
        counts: Counter[str] = Counter()
        while waiting:
            some = waiting[:ROUND]
            outcome, stages = child.run_stages(
                partial(_round, target, folder / target.bundle, some), log
            )
            counts.update(stage for stage in stages if stage in ("answered", "refused"))
            done = sum(stage in some for stage in stages)
            if outcome.is_finding:
                counts[outcome.kind] += 1
                findings.append({"name": stages[-1], "kind": outcome.kind, "said": outcome.said})
                print(json.dumps(findings[-1]), flush=True)
            waiting = waiting[max(done, 1) :]
        print(f"{kind:12} {dict(counts)}", flush=True)
    seconds = time.monotonic() - started
    total = sum(map(len, names.values()))
    print(f"{total} requests in {seconds:.0f} s, {total / max(seconds, 0.001):.0f} a second")
    return findings


def main() -> int:
    """Run as the arguments say; 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, help="a new one by default")
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), choices=TARGETS)
    parser.add_argument("--only", help="the name of one request")
    parser.add_argument("--bundles", type=Path, default=ROOT / "build" / "hostile")
    given = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if given.seed is None else given.seed
    if given.only:
        names = {given.only.partition("/")[0]: [given.only]}
    else:
        print(f"seed {seed}", flush=True)
        each = range(given.count // len(given.targets))
        names = {kind: [f"{kind}/{seed}/{number}" for number in each] for kind in given.targets}
    bundles.write(given.bundles, tuple({TARGETS[kind].bundle for kind in names}))
    with tempfile.TemporaryDirectory() as work:
        return int(bool(fuzz(given.bundles, names, Path(work, "log"))))


if __name__ == "__main__":
    sys.exit(main())
