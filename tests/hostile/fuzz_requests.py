"""Sends random requests to models; each must be answered or refused with a typed error.

    python -m tests.hostile.fuzz_requests --seed 7 --count 10000
    python -m tests.hostile.fuzz_requests --only decoder/7/123

After every refusal, and every tenth answer, a fixed request must give its first answer again.
"""

import os
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile import bundles, child, command
from tests.hostile.arguments import CallersError
from tests.hostile.targets import TARGETS, Target

import ortolan
from ortolan.errors import OrtolanError

ROUND = 200
"""Requests per process."""

ALLOWED = (OrtolanError, CallersError, TimeoutError)
"""Our errors, those of functions in the arguments, and of timeouts in the arguments."""


class WrongError(Exception):
    """A request changed later answers."""


def send(target: Target, bundle: Path, names: list[str], say: child.Say) -> None:
    """Send requests one after the other.

    Raises:
        WrongError: the fixed request has another answer.
        Exception: an error of a request that is not typed.
    """
    receiver = target.open(ortolan.load(bundle, threads=1))
    expected = target.probe(receiver)
    for number, name in enumerate(names):
        say(name)
        random = Random(name)
        refused = False
        try:
            target.send(receiver, random)
        except ALLOWED as error:
            refused = True
            if not f"{error}":
                raise WrongError("an error without a text") from error
        if refused or number % 10 == 0:
            answer = target.probe(receiver)
            if answer != expected:
                raise WrongError(f"expected {expected}, got {answer}")
        say("refused" if refused else "answered")
    target.close(receiver)


def fuzz(folder: Path, names: dict[str, list[str]], log: Path) -> list[dict[str, Any]]:
    """Send named requests by target, print a table, and return the findings."""
    findings: list[dict[str, Any]] = []
    started = time.monotonic()
    for kind, waiting in names.items():
        target = TARGETS[kind]
        counts: Counter[str] = Counter()
        while waiting:
            batch = waiting[:ROUND]
            outcome, stages = child.run_stages(
                partial(send, target, folder / target.bundle, batch), log
            )
            counts.update(stage for stage in stages if stage in ("answered", "refused"))
            done = sum(stage in batch for stage in stages)
            if outcome.is_finding:
                counts[outcome.kind] += 1
                command.add_finding(
                    findings, name=stages[-1], kind=outcome.kind, message=outcome.message
                )
            waiting = waiting[max(done, 1) :]
        print(f"{kind:12} {dict(counts)}", flush=True)
    seconds = time.monotonic() - started
    total = sum(map(len, names.values()))
    print(f"{total} requests in {seconds:.0f} s, {total / max(seconds, 0.001):.0f} a second")
    return findings


def main() -> int:
    parser = command.parser(__doc__, count=50_000)
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), choices=TARGETS)
    parser.add_argument("--only", help="name of one request")
    options = parser.parse_args()
    if options.only:
        names = {options.only.partition("/")[0]: [options.only]}
    else:
        seed = command.pick_seed(options.seed)
        numbers = range(options.count // len(options.targets))
        names = {kind: [f"{kind}/{seed}/{n}" for n in numbers] for kind in options.targets}
    bundles.write(options.bundles, tuple({TARGETS[kind].bundle for kind in names}))
    folder = options.bundles.absolute()
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)  # any text is a path where a session may be saved
        return int(bool(fuzz(folder, names, Path(work, "log"))))


if __name__ == "__main__":
    sys.exit(main())
