"""The format of a low-bit weight."""

import math
from dataclasses import dataclass
from typing import Literal

from ortolan.export.errors import not_among
from ortolan.export.options import GROUP_SIZES, GroupSize

BITS = (4, 8)
"""Bits of a code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The format of a low-bit weight.

    Attributes:
        group: inputs that share a scale.
        symmetric: every zero point is `middle`, so none is stored.
        minimums: each group has an offset; only codes copied from a checkpoint have some.
    """

    bits: Literal[4, 8]
    group: GroupSize
    symmetric: bool = True
    minimums: bool = False

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise not_among("bits", self.bits, BITS)
        if self.group not in GROUP_SIZES:
            raise not_among("group_size", self.group, GROUP_SIZES)

    @property
    def largest(self) -> int:
        """The largest code; the smallest is 0."""
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        """The code of 0.0 in a symmetric scheme."""
        return 1 << (self.bits - 1)

    def groups(self, inputs: int) -> int:
        """Number of groups in a row."""
        return -(-inputs // self.group)

    def sizes(self, rows: int, inputs: int) -> tuple[int, ...]:
        """Bytes of codes, float32 scales, zero points and minimums of a weight `(rows, inputs)`."""
        groups = self.groups(inputs)
        codes, scales = groups * self.group * self.bits // 8, 4 * groups
        zeros = 0 if self.symmetric else math.ceil(groups * self.bits / 8)
        minimums = scales if self.minimums else 0
        return tuple(rows * size for size in (codes, scales, zeros, minimums))
