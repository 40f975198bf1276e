"""Sums of the outputs of a weight for fixed vectors, by which it is checked alone.

The vectors hold multiples of 1/128 up to 127/128, with a 127 in every `GROUP` of columns. So
kernels that round activations to 8 bits, scaled by the largest of a group, round nothing here.

Shape letters: N outputs, K inputs, R vectors, S sums.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

VECTORS = 2
"""Vectors per weight."""

BLOCK = 32
"""Outputs per sum, added with fixed signs."""

GROUP = 16
"""Columns per 127. Kernels round groups of at least this size."""

_LISTED = 4
"""Wrong weights that a summary names."""

Sums = NDArray[np.float64]


class WeightsReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Outputs of each weight on this device.

    Attributes:
        products: weights that were multiplied, or whose rows were looked up.
        largest_error: of one sum, relative to the sum of absolute products; at most `bound`.
        stored: other tensors, compared bit by bit.
    """

    products: int
    largest_error: float
    bound: float
    stored: int
    wrong: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One line for a person."""
        if self.wrong:
            more = f" and {len(self.wrong) - _LISTED} more" if len(self.wrong) > _LISTED else ""
            return f"weights differ from the export: {', '.join(self.wrong[:_LISTED])}{more}"
        return (
            f"{self.products} weights by their kernels, largest error {self.largest_error:.0e} "
            f"(at most {self.bound:.0e}), {self.stored} tensors bit by bit"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWeights:
    """Outputs that the weights of a bundle must have.

    Attributes:
        outputs: width of each weight's output, by initializer.
        sums: float32 `(R, S)`, `block_sums` of all weights in the order of their names.
        sizes: float32 `(S,)`, the same of absolute products.
        stored: sha256 of every tensor that no product reads, by name.
    """

    outputs: Mapping[str, int] = field(default_factory=dict)
    sums: NDArray[np.float32] = field(default_factory=lambda: np.empty((VECTORS, 0), np.float32))
    sizes: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    stored: Mapping[str, str] = field(default_factory=dict)

    def of_weights(self) -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Return the sums `(R, S)` and sizes `(S,)` of each weight."""
        by_name, start = {}, 0
        for name in sorted(self.outputs):
            part = slice(start, start + blocks(self.outputs[name]))
            by_name[name] = (self.sums[:, part], self.sizes[part])
            start = part.stop
        return by_name


def blocks(outputs: int) -> int:
    """Number of sums for a number of outputs."""
    return -(-outputs // BLOCK)


def weight_inputs(width: int, *, whole_range: bool = False) -> NDArray[np.float32]:
    """Return the vectors for a weight, `(R, K)`. They are part of the file format."""
    random = np.random.RandomState(width)
    numbers_RK = random.randint(-127, 128, (VECTORS, width))
    for start in range(0, width, GROUP):
        places = start + random.randint(0, min(GROUP, width - start), VECTORS)
        numbers_RK[range(VECTORS), places] = random.choice([-127, 127], VECTORS)
    if whole_range:
        numbers_RK[:, 0], numbers_RK[:, -1] = 128, -127
    return (numbers_RK / 128).astype(np.float32)


def block_sums(outputs_RN: Sums) -> Sums:
    """Sum outputs in blocks with fixed signs, `(R, S)`."""
    signs = np.random.RandomState(0).randint(0, 2, outputs_RN.shape[1]) * 2 - 1
    return block_sizes(outputs_RN * signs)


def block_sizes(sizes_RN: Sums) -> Sums:
    """Sum in blocks, `(R, S)`."""
    padding = -sizes_RN.shape[1] % BLOCK
    padded = np.pad(sizes_RN.astype(np.float64), ((0, 0), (0, padding)))
    summed: Sums = padded.reshape(len(padded), -1, BLOCK).sum(axis=-1)
    return summed
