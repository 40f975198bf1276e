"""Lets a bundle write texts in a subprocess, which `write` starts.

The subprocess needs only the runtime: neither PyTorch nor the checkpoint is in its memory, and the
memory that it maps and copies is free again when it ends.
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
from ortolan.runtime.engine.windows import row_bytes
from ortolan.runtime.generation.generator import Generator
from ortolan.runtime.generation.request import Constraints, Request
from ortolan.runtime.generation.sampled_sequence import SampledSequence
from ortolan.runtime.generation.sampling_options import Sampling
from ortolan.runtime.loading import load
from ortolan.runtime.seq2seq import Seq2Seq

SEED = 0
"""Seed of the first text; each further text adds one."""

MAX_ROWS = 64
"""Maximum number of texts at once; more do not make it faster."""

CACHE_BYTES = 512 << 20
"""Bytes of states of all texts at once."""

_BEGINNINGS, _WRITTEN = "beginnings.npz", "written.npz"


def write(
    bundle: Path,
    beginnings: Sequence[NDArray[Any]],
    *,
    tokens: int,
    length: int,
    progress: Progress,
) -> list[NDArray[np.int64]]:
    """Let a bundle write texts at temperature 1, which are samples of its distribution.

    Deterministic for one bundle, thread count and processor. Files are exchanged in the bundle's
    parent folder. A decoder continues `beginnings`, ids `(S,)` and more than enough, up to a number
    of tokens in all. An encoder-decoder writes one text for each source: ids `(T,)`, images
    `(H, W, C)` or samples `(N,)`. `length` is the maximum of a text, its beginning included.
    """
    folder = bundle.parent
    np.savez(folder / _BEGINNINGS, *beginnings)

    def tell(line: str) -> None:
        done, total = line.split()
        progress("write text", int(done), int(total))

    try:
        run_python("-m", __name__, str(bundle), str(tokens), str(length), on_line=tell)
    except ProcessError as error:
        raise ExportError(
            f"The model cannot write text to calibrate on: {error}. Pass --calibration FILE, or "
            "choose --effort quick."
        ) from None
    return _load(folder / _WRITTEN)


def let_write(
    bundle: Path,
    beginnings: Sequence[NDArray[Any]],
    *,
    tokens: int,
    length: int,
    progress: Progress,
) -> list[NDArray[np.int64]]:
    """Like `write`, in this process."""
    if open_bundle(bundle).manifest.model_kind.has_encoder:
        texts = list(_answers(bundle, beginnings, length, progress))
    else:
        texts = _continued(bundle, [ids.tolist() for ids in beginnings], tokens, length, progress)
    return [np.array(text, np.int64) for text in texts]


def _main(bundle: Path, tokens: int, length: int) -> None:
    """The subprocess."""
    beginnings = _load(bundle.parent / _BEGINNINGS)
    try:
        texts = let_write(bundle, beginnings, tokens=tokens, length=length, progress=_tell)
    except OrtolanError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    np.savez(bundle.parent / _WRITTEN, *texts)


def _continued(
    bundle: Path, beginnings: Sequence[list[int]], tokens: int, length: int, progress: Progress
) -> list[list[int]]:
    """Continue the beginnings until there are enough tokens.

    A text that ends frees its slot for the next one, so nothing is written after an EOS.
    """
    opened = open_bundle(bundle)
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
    """Number of texts of a length to write at once."""
    text_bytes = row_bytes(manifest, length) + manifest.state_bytes("replace")
    return max(1, min(MAX_ROWS, CACHE_BYTES // max(1, text_bytes)))


def _answers(
    bundle: Path, sources: Sequence[NDArray[Any]], length: int, progress: Progress
) -> Iterator[list[int]]:
    """One text per source, after the start token."""
    model = load(bundle, Seq2Seq, device="cpu", isolate=False)
    start = model.manifest.tokens.start
    before = [] if start is None else [start]
    for first in range(0, len(sources), MAX_ROWS):
        batch: Any = [
            source.tolist() if source.dtype == np.int64 else source
            for source in sources[first:][:MAX_ROWS]
        ]
        sampling = Sampling(temperature=1, seed=SEED + first)
        for done in model.generate(batch, max_new_tokens=length - 1, sampling=sampling):
            yield [*before, *done.tokens]
        progress("write text", min(first + MAX_ROWS, len(sources)), len(sources))


def _tell(step: str, done: int, total: int, what: str = "") -> None:
    print(done, total, flush=True)


def _load(file: Path) -> list[NDArray[Any]]:
    """Arrays in the order they were saved in."""
    with np.load(file) as arrays:
        return [arrays[name] for name in arrays.files]


if __name__ == "__main__":
    _main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
