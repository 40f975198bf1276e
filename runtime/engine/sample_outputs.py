"""Outputs for made-up inputs, to check that a bundle runs or to compare two ways of running it."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.interface import (
    COLUMN_WEIGHTS,
    IDS,
    LENGTHS,
    MEL,
    PATCHES,
    PIXELS,
    POSITIONS,
    ROW_WEIGHTS,
    TYPES,
    WAVE,
    inputs_of,
)
from ortolan.runtime.bundle.kinds import ENCODER
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.sources import (
    AudioSource,
    ChunkedSource,
    ImageSource,
    PatchSource,
    PositionTable,
    TextSource,
    WaveSource,
)
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.shifts import AXES
from ortolan.runtime.engine.sources import Encoded

_TOKENS = 32


def sample_outputs(engine: Engine) -> list[NDArray[np.float32]]:
    """Run every graph except attention maps, with one and with several tokens."""
    manifest = engine.manifest
    kind = manifest.model_kind
    if not kind.has_decoder:
        return list(engine.encode(_source(manifest)).values())
    source = engine.encode_source(_source(manifest)) if kind.has_encoder else None
    return _decoded(engine, source)


def _decoded(engine: Engine, source: Encoded | None) -> list[NDArray[np.float32]]:
    slots = engine.slots()
    if source is not None:
        slots.put_sources([0], source)
    runner = Runner(engine, slots)
    context, vocabulary = engine.manifest.context_length, engine.manifest.vocab_size
    ids = _ids(min(_TOKENS, context), vocabulary)
    logits = [runner.chunk(0, ids, positions=range(len(ids)))]
    if len(ids) < context:
        logits.append(runner.chunk(0, ids[:1], positions=[0]))
    if engine.sees_both_ways and engine.pictures is not None and engine.manifest.features:
        slots.rewind(0)
        features = engine.manifest.features
        shape = min(features.vectors, context), features.size
        values = np.linspace(-1, 1, shape[0] * shape[1], dtype=np.float32)
        picture = engine.pictures.hold(values.reshape(shape))
        logits.append(runner.chunk(0, picture.ids, positions=[shape[0] - 1]))
    return logits


def _source(manifest: Manifest) -> dict[str, NDArray[Any]]:
    match manifest.source:
        case ImageSource(channels=channels, height=height, width=width):
            values = np.linspace(-1, 1, channels * height * width, dtype=np.float32)
            return {PIXELS: values.reshape(1, channels, height, width)}
        case PatchSource() as patches:
            return _patches(patches)
        case AudioSource(bins=bins, frames=frames):
            levels = np.linspace(-1, 1, bins * frames, dtype=np.float32)
            return {MEL: levels.reshape(1, bins, frames)}
        case WaveSource() as wave:
            size = min(wave.reach(_TOKENS), wave.samples)
            return {WAVE: np.linspace(-1, 1, size, dtype=np.float32)[None]}
        case ChunkedSource(bins=bins, chunk=chunk) as chunked:
            levels = np.linspace(-1, 1, 2 * bins * chunk, dtype=np.float32)
            lengths = np.array([2 * chunked.length(chunk) - 1], np.int32)
            return {MEL: levels.reshape(2, bins, chunk), LENGTHS: lengths}
        case TextSource(max_tokens=most):
            ids = _ids(min(_TOKENS, most), manifest.vocab_size)
        case _:
            ids = _ids(min(_TOKENS, manifest.context_length), manifest.vocab_size)
    texts: dict[str, NDArray[Any]] = {IDS: np.array([ids], np.int64)}
    texts[LENGTHS] = np.array([len(ids)], np.int32)
    if TYPES in inputs_of(ENCODER, manifest):
        texts[TYPES] = np.array([[index % 2 for index in range(len(ids))]], np.int64)
    return texts


def _patches(source: PatchSource) -> dict[str, NDArray[Any]]:
    """Squares of patches that all have the mean of the positions."""
    shape = min(2, source.vectors), source.merge**2, source.numbers
    values = np.linspace(-1, 1, math.prod(shape), dtype=np.float32)
    feeds: dict[str, NDArray[Any]] = {PATCHES: values.reshape(shape)}
    if isinstance(source.table, PositionTable):
        side = source.table.side
        weights = np.full((*shape[:2], side), 1 / side, np.float32)
        feeds |= {ROW_WEIGHTS: weights, COLUMN_WEIGHTS: weights}
    if source.axes:
        feeds[POSITIONS] = np.zeros((*shape[:2], AXES), np.int64)
    return feeds


def _ids(count: int, vocabulary: int) -> list[int]:
    return [index % vocabulary for index in range(count)]
