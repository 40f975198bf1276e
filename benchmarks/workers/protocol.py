"""How a worker talks with the driver: one JSON object per line on stdin and stdout.

    worker:  {"load_s": 0.8}
    driver:  {"prompt": [5, 17, 3], "new_tokens": 128}
    worker:  {"tokens": [...], "prefill_s": 0.1, "decode_s": 1.7, "peak_bytes": 123456789}
    driver:  {"logits_of": [5, 17, 3], "path": "/tmp/logits.npy"}
    worker:  {"path": "/tmp/logits.npy"}
    driver:  {"sources": ["One", "Two"], "batch": 1, "beams": 4, "new_tokens": 64}
    worker:  {"outputs": ["Un", "Deux"], "seconds": 0.2, "peak_bytes": 123456789}
    driver:  {"texts": [[5, 17], [8, 9]], "folder": "/tmp"}
    worker:  {"path": "/tmp/vectors-4711.npy", "seconds": 0.2, "peak_bytes": 123456789}
    driver:  {"streams": [[5, 17], [8, 9]], "new_tokens": 128}
    worker:  {"tokens": [[...], [...]], "seconds": 1.7, "peak_bytes": 123456789}

A worker is started as `python -m workers.NAME MODEL THREADS [OPTION=VALUE ...]`, loads the model
once, and serves until its stdin closes. This module runs in the environment of each peer, so it
needs nothing but NumPy. Does not know what an engine is.
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
    """What the command line of a worker says.

    Attributes:
        model: the folder or file to load.
        threads: how many to use.
        options: whatever else, for this worker alone.
    """

    model: Path
    threads: int
    options: Mapping[str, str]


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A loaded model.

    Attributes:
        generate: (prompt ids, number of new tokens) -> what came of it, greedily and past any
            end token.
        logits: ids -> the logits after each of them, `(len(ids), vocab)`.
        translate: (texts, beams, most new tokens) -> the best text for each.
        together: (prompts, number of new tokens of each) -> the tokens of each, greedily and past
            any end token, all computed at once.
        encode: texts of one length -> the vectors of their tokens, `(texts, tokens, width)`.
    """

    generate: Callable[[list[int], int], Generated] | None = None
    logits: Callable[[list[int]], NDArray[np.float32]] | None = None
    translate: Callable[[list[str], int, int], list[str]] | None = None
    together: Callable[[list[list[int]], int], list[list[int]]] | None = None
    encode: Callable[[list[list[int]]], NDArray[np.float32]] | None = None


def serve(load: Callable[[Start], Engine]) -> None:
    """Load the model that the command line names, then answer requests until stdin closes."""
    # Libraries print to stdout as they please: keep it for replies, give them stderr.
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
    """Do what one request asks.

    Raises:
        ValueError: this worker does not do that.
    """
    match request:
        case {"logits_of": ids, "path": path} if engine.logits:
            np.save(path, engine.logits(ids).astype(np.float32))
            return {"path": path}
        case {"prompt": prompt, "new_tokens": new_tokens} if engine.generate:
            done = engine.generate(prompt, new_tokens)
            return {**dataclasses.asdict(done), "peak_bytes": peak_bytes()}
        case {"sources": sources, "batch": batch, "beams": beams, "new_tokens": most} if (
            engine.translate
        ):
            parts = [sources[at : at + batch] for at in range(0, len(sources), batch)]
            begun = time.perf_counter()
            outputs = [row for part in parts for row in engine.translate(part, beams, most)]
            seconds = time.perf_counter() - begun
            return {"outputs": outputs, "seconds": seconds, "peak_bytes": peak_bytes()}
        case {"streams": prompts, "new_tokens": new_tokens} if engine.together:
            begun = time.perf_counter()
            tokens = engine.together(prompts, new_tokens)
            seconds = time.perf_counter() - begun
            return {"tokens": tokens, "seconds": seconds, "peak_bytes": peak_bytes()}
        case {"texts": texts, "folder": folder} if engine.encode:
            begun = time.perf_counter()
            vectors = engine.encode(texts)
            seconds = time.perf_counter() - begun
            path = f"{folder}/vectors-{os.getpid()}.npy"  # every worker is asked the same
            np.save(path, vectors.astype(np.float32))
            return {"path": path, "seconds": seconds, "peak_bytes": peak_bytes()}
    raise ValueError(f"expected a request that this worker serves, got {sorted(request)}")


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
