"""Outputs for made-up inputs, to check that a bundle runs or to compare two ways of running it."""

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.runner import Runner
from ortolan.runtime.engine.sources import Encoded

_TOKENS = 32


def sample_outputs(engine: Engine) -> list[NDArray[np.float32]]:
    """Run every graph except attention maps, with one and with several tokens."""
    manifest = engine.manifest
    if manifest.source is None:
        return _decoded(engine, None)
    feeds = manifest.source.sample(manifest.vocab_size)
    if not manifest.model_kind.has_decoder:
        return list(engine.encode(feeds).values())
    return _decoded(engine, engine.encode_source(feeds))


def _decoded(engine: Engine, source: Encoded | None) -> list[NDArray[np.float32]]:
    slots = engine.slots()
    if source is not None:
        slots.sources.put([0], source)
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


def _ids(count: int, vocabulary: int) -> list[int]:
    return [index % vocabulary for index in range(count)]
