"""Protocol between worker and driver: one JSON object per line on stdin and stdout.

    worker:  {"load_s": 0.8}
    driver:  {"prompt": [5, 17, 3], "new_tokens": 128}
    worker:  {"tokens": [...], "prefill_s": 0.1, "decode_s": 1.7, "peak_bytes": 123456789}
    driver:  {"logits_of": [5, 17, 3], "path": "/tmp/logits.npy"}
    worker:  {"path": "/tmp/logits.npy"}
    driver:  {"streams": [[5, 17], [8, 9]], "new_tokens": 128}
    worker:  {"tokens": [[...], [...]], "seconds": 1.7, "peak_bytes": 123456789}

A worker is started as `python -m workers.NAME MODEL THREADS [OPTION=VALUE ...]`, loads the model
once, and serves until its stdin closes. This module runs in the environment of every peer, so it
needs only NumPy.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Command line of a worker.

    Attributes:
        model: folder or file to load.
        threads: number of threads.
        options: further options of the worker.
    """

    model: Path
    threads: int
    options: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Result of a generate request.

    Attributes:
        tokens: new ids.
        prefill_s: seconds until the first one, allocation included.
        decode_s: seconds for the others.
    """

    tokens: list[int]
    prefill_s: float
    decode_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A loaded model.

    Attributes:
        generate: (prompt ids, number of new tokens) -> greedy generation, ignoring EOS.
        logits: ids -> logits after each id, `(len(ids), vocab)`.
        together: (prompts, new tokens per prompt) -> greedy generation after all prompts at once,
            ignoring EOS.
    """

    generate: Callable[[list[int], int], Generated] | None = None
    logits: Callable[[list[int]], NDArray[np.float32]] | None = None
    together: Callable[[list[list[int]], int], list[list[int]]] | None = None


def serve(load: Callable[[Start], Engine]) -> None:
    """Load the model of the command line, then answer requests until stdin closes."""
    # Libraries may print to stdout: keep it for replies, and send their output to stderr.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def reply(content: dict[str, Any]) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    model, threads, *options = sys.argv[1:]
    start = Start(
        model=Path(model),
        threads=int(threads),
        options=dict(option.split("=", 1) for option in options),
    )
    before = time.perf_counter()
    engine = load(start)
    reply({"load_s": time.perf_counter() - before})
    for line in sys.stdin:
        reply(answer(engine, json.loads(line)))


def answer(engine: Engine, request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one request.

    Raises:
        ValueError: the worker does not support it.
    """
    match request:
        case {"logits_of": ids, "path": path} if engine.logits:
            np.save(path, engine.logits(ids).astype(np.float32))
            return {"path": path}
        case {"prompt": prompt, "new_tokens": new_tokens} if engine.generate:
            done = engine.generate(prompt, new_tokens)
            return {**dataclasses.asdict(done), "peak_bytes": peak_bytes()}
        case {"streams": prompts, "new_tokens": new_tokens} if engine.together:
            begun = time.perf_counter()
            tokens = engine.together(prompts, new_tokens)
            seconds = time.perf_counter() - begun
            return {"tokens": tokens, "seconds": seconds, "peak_bytes": peak_bytes()}
    raise ValueError(f"unsupported request: {sorted(request)}")


def peak_bytes() -> int | None:
    """Peak resident memory of this process; None unless on Linux."""
    # After exec, getrusage still reports the peak of the parent process.
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    for line in status.read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
