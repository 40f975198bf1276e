"""A packed tensor: the stored parts that a quantization config implies, and its rows.

Shapes and types of parts are checked before they are read.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ortolan.modeling.codes import StoredCodes
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.lazy_tensor import LazyTensor, lazy_rows

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Types of unquantized weights and of scales."""

Shape = tuple[int, ...]

Values = Mapping[str, object]
"""Values of a quantization config."""

Stored = Mapping[str, LazyTensor]
"""Tensors as the files hold them, by name."""

T = TypeVar("T")


class Part(NamedTuple):
    """A stored tensor of a packed weight.

    Attributes:
        shapes: shapes that it may have; None for any.
        dtypes: types that it may have; empty for any.
    """

    shapes: Sequence[Shape] | None = None
    dtypes: Sequence[torch.dtype] = ()


UNREAD = Part()
"""A tensor that is not read."""


class Packing(ABC):
    """Decodes a published tensor from stored ones."""

    shape: Shape

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, Part]:
        """Its stored tensors by name, with the shapes and types that the config implies."""

    @abstractmethod
    def rows(self, stored: Stored, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]`, float32."""

    def check(self, stored: Stored) -> None:
        """Check what the shapes and types of its parts do not tell; raise CheckpointError."""
        del stored

    def codes(self, stored: Stored) -> StoredCodes | None:
        """Its codes; None if they are none that a kernel supports."""
        del stored
        return None

    def tensor(self, stored: Stored, *, outputs_first: bool = False) -> LazyTensor:
        """The published tensor."""
        tensor = lazy_rows(torch.empty(self.shape, device="meta"), partial(self.rows, stored))
        tensor.codes, tensor.outputs_first = self.codes(stored), outputs_first
        return tensor


def check_parts(name: str, parts: Mapping[str, Part], stored: Stored) -> None:
    """Check that the stored tensors of a weight are those that its config declares."""
    for part, expected in parts.items():
        if part not in stored:
            raise CheckpointError(
                f"{name}: its stored part {part} is missing. The download is incomplete."
            )
        shape, dtype = tuple(stored[part].shape), stored[part].dtype
        if expected.shapes is not None and shape not in expected.shapes:
            shapes = " or ".join(map(str, expected.shapes))
            raise unsupported(part, f"of shape {shapes}", shape)
        if expected.dtypes and dtype not in expected.dtypes:
            raise unsupported(part, f"of type {' or '.join(map(str, expected.dtypes))}", dtype)


def unsupported(key: str, expected: str, value: object) -> CheckpointError:
    """The error for a value or a tensor that Ortolan does not read."""
    return CheckpointError(
        f"quantization_config: {key} must be {expected} (got {value!r:.80}). Export the checkpoint "
        "that this one was quantized from."
    )


def one_of(key: str, value: object, choices: Sequence[T]) -> T:
    """The value if it is a choice."""
    for choice in choices:
        if value == choice and type(value) is type(choice):
            return choice
    raise unsupported(key, f"one of {', '.join(map(str, choices))}", value)


def optional_bool(key: str, value: object) -> bool | None:
    """A boolean, or None if the config leaves it out."""
    return one_of(key, value, (None, True, False))


def block_size(key: str, value: object) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    match value:
        case [int(high), int(wide)] if high > 0 and wide > 0:
            return high, wide
    raise unsupported(key, "two positive integers", value)


def matrix(name: str, shape: Sequence[int]) -> tuple[int, int]:
    """The shape of a matrix."""
    match tuple(shape):
        case int(rows), int(columns) if rows > 0 and columns > 0:
            return rows, columns
    raise unsupported(name, "a matrix", f"shape {tuple(shape)}")


def blocks(size: int, block: int) -> int:
    """Number of blocks that cover `size` rows, columns or values."""
    return -(-size // block)
