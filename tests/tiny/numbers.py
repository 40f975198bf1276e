"""Random ids, and a comparison of floats."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.tiny.decoders import VOCABULARY


def random_ids(count: int, *, seed: int = 0) -> list[int]:
    """Token ids of the tiny models."""
    ids: list[int] = np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()
    return ids


def assert_close(got: NDArray[Any], wanted: NDArray[Any], *, delta: float = 1e-4) -> None:
    """Compare within `delta` of the largest wanted number; the shapes are the same."""
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=delta * float(np.abs(wanted).max()))
