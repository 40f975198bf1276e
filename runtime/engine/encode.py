"""Several sources, encoded such that each is to the decoder what it is alone.

Knows which encoders let the sources of a batch change each other, and how states are padded. Does
not know sessions, nor who reads the sources.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.interface import IDS, LENGTHS
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.engine.engine import Engine
from ortolan.runtime.engine.slots import Encoded

__all__ = ["encode"]


def encode(engine: Engine, feeds: Mapping[str, NDArray[Any]]) -> Encoded:
    """Compute what the decoder reads of its sources.

    An encoder of 8-bit products rounds all activations of a call on one scale, padding and other
    sources included. It takes its sources one by one: then none of them depends on the others,
    and a small batch fills that kernel already.

    Args:
        engine: the sessions.
        feeds: inputs of the encoder graph, for one source or more.

    Raises:
        ForkedError: the process was forked after the engine was made.
    """
    count = len(next(iter(feeds.values())))
    if count == 1 or engine.manifest.prefill_precision is None:
        return engine.encode_source(feeds)
    parts = [engine.encode_source(_one(feeds, index)) for index in range(count)]
    return _together(parts, engine.manifest)


def _one(feeds: Mapping[str, NDArray[Any]], index: int) -> dict[str, NDArray[Any]]:
    """The feeds of one source, without its padding."""
    part = {name: values[index : index + 1] for name, values in feeds.items()}
    if LENGTHS in part:
        part[IDS] = np.ascontiguousarray(part[IDS][:, : int(part[LENGTHS][0])])
    return part


def _together(parts: list[Encoded], manifest: Manifest) -> Encoded:
    """Sources of any lengths as one batch, padded with zeros after each."""
    lengths = np.concatenate([part.lengths for part in parts])
    longest = int(lengths.max())
    read = [state for state in manifest.states if state.update == "source"]
    joined = []
    for number, state in enumerate(read):
        axis = state.shape.index("source")
        values = [part.states[number] for part in parts]
        shape = list(values[0].shape)
        shape[0], shape[axis] = len(parts), longest
        whole = np.zeros(shape, values[0].dtype)
        for index, value in enumerate(values):
            place = tuple(slice(0, size) for size in value.shape[1:])
            whole[index][place] = value[0]
        joined.append(whole)
    return Encoded(lengths=lengths, states=tuple(joined))
