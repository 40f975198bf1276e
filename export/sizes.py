"""Sizes of tensors in the weight file of a bundle."""

import math
from collections.abc import Container, Iterable

import onnx_ir as ir

from ortolan.export.errors import ExportError
from ortolan.export.values import static_shape

ALIGNMENT = 4096
"""Tensors start on a page of this many bytes, so that the runtime can map each of them."""


def pages(size: int) -> int:
    """Bytes of the whole pages of a tensor."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def initializer_sizes(models: Iterable[ir.Model]) -> dict[str, int]:
    """Bytes of every initializer by name."""
    return {name: _nbytes(value) for name, value in _initializers(models).items()}


def page_bytes(models: Iterable[ir.Model], *, without: Container[str]) -> int:
    """Bytes of the pages of all initializers except some, each counted once."""
    values = _initializers(models)
    return sum(pages(_nbytes(value)) for name, value in values.items() if name not in without)


def _initializers(models: Iterable[ir.Model]) -> dict[str, ir.Value]:
    return {name: value for model in models for name, value in model.graph.initializers.items()}


def _nbytes(value: ir.Value) -> int:
    if value.dtype is None:
        raise ExportError(f"{value.name}: this initializer has no type.")
    return math.ceil(math.prod(static_shape(value)) * value.dtype.bitwidth / 8)
