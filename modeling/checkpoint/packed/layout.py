"""Shapes and types of stored tensors that a quantization config implies, checked before reading."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch

from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.weights import TensorSource

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Types of unquantized weights and of scales."""

Shape = tuple[int, ...]

Values = Mapping[str, object]
"""Values of a quantization config."""

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


def check_parts(name: str, parts: Mapping[str, Part], source: TensorSource) -> None:
    """Check that the stored tensors of a weight are those that its config declares."""
    stored = source.shapes()
    for part, expected in parts.items():
        if part not in stored:
            raise CheckpointError(
                f"{name}: its stored part {part} is missing. The download is incomplete."
            )
        if expected.shapes is not None and stored[part] not in expected.shapes:
            shapes = " or ".join(map(str, expected.shapes))
            raise unsupported(part, f"of shape {shapes}", stored[part])
        if expected.dtypes:
            check_dtype(part, source, expected.dtypes)


def check_dtype(name: str, source: TensorSource, dtypes: Sequence[torch.dtype]) -> None:
    """Check the type of a tensor."""
    dtype = source.read(name, 0, 1).dtype
    if dtype not in dtypes:
        raise unsupported(name, f"of type {' or '.join(map(str, dtypes))}", dtype)


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
