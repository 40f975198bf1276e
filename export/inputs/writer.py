"""Texts that a bundle writes by itself, in a process of its own: `write` starts it.

That process holds neither PyTorch nor the checkpoint, and what it maps and copies of the weights is
gone when it ends. Of the project it needs the runtime alone.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.errors import OrtolanError
from ortolan.export.errors import ExportError
from ortolan.export.process import ProcessError, run_python
from ortolan.export.progress import Progress
from ortolan.runtime.bundle.folder import open_bundle
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.request import Constraints, Request
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.loading import load
from ortolan.runtime.seq2seq import Seq2Seq

SEED = 0
"""Of the first text; seeds count up from it."""

MOST_ROWS = 64
"""Texts that are written at once, at most; more fill no core better."""

CACHE_BYTES = 512 << 20
"""Of the states of all of them; fewer are written at once where one takes much."""

_GIVEN, _WRITTEN = "given.npz", "written.npz"


def write(
    bundle: Path, given: Sequence[NDArray[Any]], *, tokens: int, length: int, progress: Progress
) -> list[NDArray[np.int64]]:
    """Let a bundle write texts at temperature 1: draws from its own distribution.

    The same bundle, thread count and processor write the same texts.

    Args:
        bundle: its folder; files are exchanged beside it.
        given: what each text begins with, ids `(S,)`, as many as could be needed; or its source,
            ids `(T,)` or an image `(H, W, C)`, and then a text is written for each.
        tokens: when to stop, where texts begin with something.
        length: tokens of a text, at most, that which it begins with included.
        progress: called while it writes.

    Returns:
        Ids of each text, from its beginning or its start token on; none of a text whose logits
        were not finite.

    Raises:
        ExportError: the bundle does not run.
    """
    folder = bundle.parent
    np.savez(folder / _GIVEN, *given)

    def tell(line: str) -> None:
        done, total = line.split()
        progress("write text", int(done), int(total))

    try:
        run_python("-m", __name__, str(bundle), str(tokens), str(length), told=tell)
    except ProcessError as error:
        raise ExportError(
            f"calibration: expected the model to write a text, got: {error}. "
            "Give --calibration FILE, or choose --method rtn."
        ) from None
    return _load(folder / _WRITTEN)


def let_write(
    bundle: Path, given: Sequence[NDArray[Any]], *, tokens: int, length: int, progress: Progress
) -> list[NDArray[np.int64]]:
    """What `write` does, in this process.

    Raises:
        OrtolanError: the bundle does not run.
    """
    if open_bundle(bundle, trust=True).manifest.model_kind.has_encoder:
        texts = list(_answers(bundle, given, length, progress))
    else:
        texts = _continued(bundle, [ids.tolist() for ids in given], tokens, length, progress)
    return [np.array(text, np.int64) for text in texts]


def _main(bundle: Path, tokens: int, length: int) -> None:
    """The process: from `given.npz` beside a bundle to `written.npz`."""
    given = _load(bundle.parent / _GIVEN)
    try:
        texts = let_write(bundle, given, tokens=tokens, length=length, progress=_tell)
    except OrtolanError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    np.savez(bundle.parent / _WRITTEN, *texts)


def _continued(
    bundle: Path, beginnings: Sequence[list[int]], tokens: int, length: int, progress: Progress
) -> list[list[int]]:
    """Texts that begin with something, until there are so many tokens.

    A text that ends makes room for the next: the model is never asked what comes after an end.
    """
    opened = open_bundle(bundle, trust=True)
    manifest, engine = opened.manifest, Engine(opened)
    texts = [
        SampledSequence(
            _request(manifest, beginning, length - len(beginning), SEED + number),
            vocab_size=manifest.vocab_size,
            tokenizer=None,
        )
        for number, beginning in enumerate(beginnings)
    ]
    generator = Generator(engine, slots=_rows(manifest, length), exact=True)
    for text in texts:
        generator.submit(text)
    written = 0
    while written < tokens and generator.round():
        written = sum(len(text.request.prompt) + len(text.tokens) for text in texts if text.tokens)
        progress("write text", min(written, tokens), tokens)
    return [[*text.request.prompt, *text.tokens] for text in texts if text.tokens]


def _request(manifest: Manifest, beginning: list[int], limit: int, seed: int) -> Request:
    return Request(
        prompt=beginning,
        prompt_tokens=len(beginning),
        limit=limit,
        sampling=Sampling(temperature=1, seed=seed),
        eos=frozenset(manifest.tokens.eos),
        constraints=Constraints.of(manifest.tokens),
    )


def _rows(manifest: Manifest, length: int) -> int:
    """How many texts of a length are written at once."""
    each = length * manifest.state_bytes("append") + manifest.state_bytes("replace")
    return max(1, min(MOST_ROWS, CACHE_BYTES // max(1, each)))


def _answers(
    bundle: Path, sources: Sequence[NDArray[Any]], length: int, progress: Progress
) -> Iterator[list[int]]:
    """A text for each source, after the start token."""
    model = load(bundle, Seq2Seq, device="cpu", trust=True)
    start = model.manifest.tokens.start
    before = [] if start is None else [start]
    for first in range(0, len(sources), MOST_ROWS):
        given: Any = [
            each if each.ndim == 3 else each.tolist() for each in sources[first:][:MOST_ROWS]
        ]
        sampling = Sampling(temperature=1, seed=SEED + first)
        for done in model.generate(given, max_new_tokens=length - 1, sampling=sampling):
            yield [*before, *done.tokens]
        progress("write text", min(first + MOST_ROWS, len(sources)), len(sources))


def _tell(step: str, done: int, total: int) -> None:
    print(done, total, flush=True)


def _load(file: Path) -> list[NDArray[Any]]:
    """Arrays in the order in which they were saved."""
    with np.load(file) as arrays:
        return [arrays[name] for name in arrays.files]


if __name__ == "__main__":
    _main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
