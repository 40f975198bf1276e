"""What a weight has to compute by itself: sums of its outputs for vectors that never change.

The vectors hold whole 128ths up to 127 of them, and 127 of them in every `GROUP` of columns, so
that kernels which round what enters to 8 bits, by the largest of a group, round nothing here.

Shape letters: N outputs, K inputs, R vectors, S sums.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "VECTORS",
    "ExpectedWeights",
    "Sums",
    "WeightsReport",
    "block_sizes",
    "block_sums",
    "blocks",
    "probe_vectors",
]

VECTORS = 2
"""Vectors that each weight is multiplied by."""

BLOCK = 32
"""Outputs that are summed, with signs."""

GROUP = 16
"""Columns of which one has the largest number: kernels round by groups of at least as many."""

_LISTED = 4
"""Wrong weights that a report names."""

Sums = NDArray[np.float64]


class WeightsReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the weights of a bundle compute on a device, one by one.

    Attributes:
        products: weights that were multiplied by, or whose rows were looked up.
        largest_error: of one sum, relative to the sum of its products without their signs.
        bound: how large it may be.
        stored: other tensors, compared bit by bit.
        wrong: weights that are not what was exported, by name.
    """

    products: int
    largest_error: float
    bound: float
    stored: int
    wrong: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """In one line."""
        if self.wrong:
            more = f" and {len(self.wrong) - _LISTED} more" if len(self.wrong) > _LISTED else ""
            return f"other weights than were exported: {', '.join(self.wrong[:_LISTED])}{more}"
        return (
            f"{self.products} weights by their kernels, largest error {self.largest_error:.0e} "
            f"(at most {self.bound:.0e}), {self.stored} tensors bit by bit"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWeights:
    """What the weights of a bundle have to compute.

    Attributes:
        outputs: of each weight, by the name of its initializer.
        sums: float32 `(R, S)`, of all weights in the order of their names (`block_sums`).
        sizes: float32 `(S,)`, of the products without their signs.
        stored: sha256 of every tensor that no product reads, by name.
    """

    outputs: Mapping[str, int] = field(default_factory=dict)
    sums: NDArray[np.float32] = field(default_factory=lambda: np.empty((VECTORS, 0), np.float32))
    sizes: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    stored: Mapping[str, str] = field(default_factory=dict)

    def of_weights(self) -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Sums `(R, S)` and sizes `(S,)` of each weight."""
        found, start = {}, 0
        for name in sorted(self.outputs):
            part = slice(start, start + blocks(self.outputs[name]))
            found[name] = (self.sums[:, part], self.sizes[part])
            start = part.stop
        return found


def blocks(outputs: int) -> int:
    """Sums of a weight with so many outputs."""
    return -(-outputs // BLOCK)


def probe_vectors(width: int, *, whole_range: bool = False) -> NDArray[np.float32]:
    """The vectors that a weight is multiplied by, `(R, K)`: the same for ever.

    Args:
        width: `K`.
        whole_range: for kernels that round by the range from the smallest to the largest number
            into 256 steps: the largest is one step further from 0 than the smallest.
    """
    random = np.random.RandomState(width)
    numbers_RK = random.randint(-127, 128, (VECTORS, width))
    for start in range(0, width, GROUP):
        places = start + random.randint(0, min(GROUP, width - start), VECTORS)
        numbers_RK[range(VECTORS), places] = random.choice([-127, 127], VECTORS)
    if whole_range:
        numbers_RK[:, 0], numbers_RK[:, -1] = 128, -127
    return (numbers_RK / 128).astype(np.float32)


def block_sums(outputs_RN: Sums) -> Sums:
    """Outputs with signs, summed in blocks: `(R, S)`."""
    signs = np.random.RandomState(0).randint(0, 2, outputs_RN.shape[1]) * 2 - 1
    return block_sizes(outputs_RN * signs)


def block_sizes(sizes_RN: Sums) -> Sums:
    """Sizes, summed in blocks: `(R, S)`."""
    padding = -sizes_RN.shape[1] % BLOCK
    padded = np.pad(sizes_RN.astype(np.float64), ((0, 0), (0, padding)))
    summed: Sums = padded.reshape(len(padded), -1, BLOCK).sum(axis=-1)
    return summed
