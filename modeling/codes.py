"""Integer codes that a checkpoint stores in place of floats, and that kernels use unchanged."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

CODE_BITS = (4, 8)

CODE_GROUPS = (32, 64, 128, 256)
"""Bits and group sizes of codes that kernels compute with."""


class CodeFormat(NamedTuple):
    """Format of a weight that is stored as integer codes.

    Attributes:
        bits: bits per code.
        group: inputs that share a scale.
        symmetric: every zero point is the middle code.
        minimums: a minimum is added to each group.
    """

    bits: int
    group: int
    symmetric: bool
    minimums: bool = False


class CodedRows(NamedTuple):
    """Rows of a weight as `(value - zero) * scale + minimum`, in groups `(N, G)` of inputs.

    Attributes:
        values: codes, uint8 `(N, K)`.
        scales: float32 `(N, G)`.
        zeros: uint8 `(N, G)`.
        minimums: float32 `(N, G)`.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor
    minimums: Tensor


class StoredCodes:
    """The codes of a tensor. Neither their format nor any row is read until it is needed."""

    def __init__(
        self,
        find_format: Callable[[], CodeFormat | None],
        rows: Callable[[int, int], CodedRows],
    ) -> None:
        self._find_format = find_format
        self.rows = rows

    @cached_property
    def format(self) -> CodeFormat | None:
        """Their format; None if no kernel supports it."""
        return self._find_format()


def joint_format(formats: Iterable[CodeFormat | None]) -> CodeFormat | None:
    """Format of several parts together; None unless all have the same bits and group size."""
    parts = list(formats)
    coded = [part for part in parts if part is not None]
    if len(coded) < len(parts) or len({part[:2] for part in coded}) != 1:
        return None
    return coded[0]._replace(
        symmetric=all(part.symmetric for part in coded),
        minimums=any(part.minimums for part in coded),
    )


def join_codes(parts: Sequence[CodedRows]) -> CodedRows:
    """Concatenate the rows of several parts."""
    if len(parts) == 1:
        return parts[0]
    return CodedRows(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
