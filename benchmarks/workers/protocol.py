"""How a worker talks with peers.py: one JSON object per line on stdin and stdout.

    worker:  {"load_s": 0.8}
    driver:  {"prompt": [5, 17, 3], "new_tokens": 128}
    worker:  {"tokens": [...], "prefill_s": 0.1, "decode_s": 1.7, "peak_bytes": 123456789}

A worker is started as `python -m workers.NAME MODEL THREADS`, loads the model once, and serves
until its stdin closes. This module runs in the environment of each peer, so it needs nothing but
the standard library. Does not know what an engine is.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What one request gave.

    Attributes:
        tokens: the ids after the prompt.
        prefill_s: seconds until the first of them was known, allocation included.
        decode_s: seconds for the others.
    """

    tokens: list[int]
    prefill_s: float
    decode_s: float


Generate = Callable[[list[int], int], Generated]
"""(prompt ids, number of new tokens) -> what came of it, greedily and past any end token."""


def serve(load: Callable[[Path, int], Generate]) -> None:
    """Load the model that the command line names, then answer requests until stdin closes.

    Args:
        load: takes the model's folder or file and the number of threads.
    """
    # Libraries print to stdout as they please: keep it for replies, give them stderr.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def reply(content: dict[str, Any]) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    model, threads = sys.argv[1:]
    start = time.perf_counter()
    generate = load(Path(model), int(threads))
    reply({"load_s": time.perf_counter() - start})
    for line in sys.stdin:
        request = json.loads(line)
        done = generate(request["prompt"], request["new_tokens"])
        reply({**dataclasses.asdict(done), "peak_bytes": peak_bytes()})


def peak_bytes() -> int | None:
    """Return the most memory that this process held resident, or None where not Linux."""
    # getrusage would do, but after exec it still reports the peak of the parent.
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    for line in status.read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
