"""Compares a graph in another layout with the bundle's decoder, bit for bit."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ortolan.export.errors import LayoutError
from ortolan.export.passes.take_mask import MASK
from ortolan.runtime.bundle.bundle import Bundle
from ortolan.runtime.bundle.interface import LOGITS, STEP_INPUTS, WINDOW_STARTS
from ortolan.runtime.bundle.kinds import DECODER
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.source import IDS
from ortolan.runtime.engine.ort_session import open_part
from ortolan.runtime.engine.threads import chosen_threads

LENGTHS = (5, 3)
"""Tokens of the rows that are compared; the shorter one is padded on either side."""

Tensors = Mapping[str, NDArray[np.generic]]


def compare(bundle: Bundle, graph: bytes) -> None:
    """Check that a graph with an attention mask computes the logits of the bundle's decoder.

    Both compute a padded batch of two prompts and one more step.
    """
    manifest, threads = bundle.manifest, chosen_threads(None, bundle.manifest)
    longest, shortest = (min(length, manifest.context_length - 1) for length in LENGTHS)
    numbers = np.random.default_rng(0)
    ids = numbers.integers(0, manifest.vocab_size, (2, longest))
    following = numbers.integers(0, manifest.vocab_size, (2, 1))
    lengths = np.array([longest, shortest], np.int32)

    run = open_part(bundle, bundle.read(manifest.graphs[DECODER].file), threads=threads)
    starts = {WINDOW_STARTS: np.zeros(2, np.int32)} if manifest.has_windows else {}
    prompt = run(_with_lengths(ids, lengths, longest) | starts | _empty(manifest))
    step = run(
        _with_lengths(following, lengths + 1, longest + 1) | starts | _past(manifest, prompt)
    )
    del run

    run = open_part(bundle, graph, threads=threads)
    is_token = np.arange(longest) < lengths[:, None]
    flipped = np.stack(
        [np.roll(row, longest - length) for row, length in zip(ids, lengths, strict=True)]
    )
    for side, prompts, mask in (
        ("right", ids, is_token),
        ("left", flipped, np.flip(is_token, axis=1)),
    ):
        got = run(_with_mask(prompts, mask) | _empty(manifest))
        _check(f"a prompt padded on the {side}", prompt, got)
        mask = np.concatenate([mask, np.ones((2, 1), bool)], axis=1)
        got = run(_with_mask(following, mask) | _past(manifest, got))
        _check(f"the step after a prompt padded on the {side}", step, got)


def _with_lengths(
    ids: NDArray[np.int64], lengths: NDArray[np.int32], total: int
) -> dict[str, NDArray[np.generic]]:
    last = np.minimum(lengths, ids.shape[1])[:, None].astype(np.int64) - 1
    values = (ids, lengths - 1, np.array(total, np.int32), last)
    return dict(zip(STEP_INPUTS, values, strict=True))


def _with_mask(ids: NDArray[np.int64], mask: NDArray[np.bool_]) -> dict[str, NDArray[np.generic]]:
    return {IDS: ids, MASK: mask.astype(np.int64)}


def _empty(manifest: Manifest) -> dict[str, NDArray[np.generic]]:
    sizes: dict[int | str, int | str] = {"batch": 2, "capacity": 0}
    return {
        state.input: np.empty([int(sizes.get(size, size)) for size in state.shape], state.dtype)
        for state in manifest.states
    }


def _past(manifest: Manifest, outputs: Tensors) -> dict[str, NDArray[np.generic]]:
    return {state.input: outputs[state.output] for state in manifest.states}


def _check(what: str, expected: Tensors, got: Tensors) -> None:
    if not np.array_equal(expected[LOGITS], got[LOGITS]):
        most = np.abs(expected[LOGITS].astype(float) - got[LOGITS].astype(float)).max()
        raise LayoutError(
            f"The graph for onnxruntime-genai computes other logits for {what}: expected equal "
            f"ones, got a difference of {most:.3g}. Run `ortolan verify` on the bundle."
        )
