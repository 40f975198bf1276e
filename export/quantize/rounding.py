"""Weights and their codes, a few rows at a time, and rounding without calibration.

Shape letters: n rows of a weight, N all of them, K its columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ortolan.export.options import Method
from ortolan.export.quantize import rtn
from ortolan.export.quantize.blocks import Codes
from ortolan.export.scheme import Scheme
from ortolan.modeling.weights import Weights
from ortolan.runtime.machine.memory import return_free_memory

CHUNK_ELEMENTS = 1 << 18
"""Elements to round together, so that their temporaries stay in the cache of a core."""

READ_CHUNKS = 16
"""Chunks to read together."""

TRIM_READS = 8
"""Reads after which free memory is returned to the system, since malloc would keep it."""

StoredMethod = Method | Literal["tuned", "kept"]
"""How codes were found, as the manifest says: `tuned` ones by GPTQ, and their scales were trained
after it; `kept` ones are the checkpoint's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rows `(n, K)` of a weight, their codes, and any squared error of their outputs."""

    rows: Tensor
    codes: Codes
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeight:
    """A weight with its codes; `parts` has all of its rows in order, and can be read once."""

    name: str
    scheme: Scheme
    method: StoredMethod
    parts: Iterator[Part]


def round_weight(
    weights: Weights, name: str, scheme: Scheme, *, search: bool = False
) -> QuantizedWeight:
    """Round a weight to nearest, a few rows at a time; `search` looks for better scales."""
    equal = torch.ones(weights.shape(name)[-1]) if search else None
    parts = (
        Part(rows=rows, codes=rtn.quantize(rows, scheme, importance=equal))
        for rows in row_chunks(weights, name)
    )
    return QuantizedWeight(name=name, scheme=scheme, method="rtn", parts=parts)


def row_chunks(weights: Weights, name: str) -> Iterator[Tensor]:
    """Rows of a weight `(n, K)`, float32, in chunks of about `CHUNK_ELEMENTS` within one expert."""
    count, *experts, columns = weights.shape(name)
    step = max(1, CHUNK_ELEMENTS // columns)
    size = 1 if experts else step * READ_CHUNKS
    for number, start in enumerate(range(0, count, size), 1):
        read = weights.rows(name, start, min(start + size, count)).flatten(0, -2)
        for chunk in read.split(step):  # type: ignore[no-untyped-call]
            yield chunk.float()
        if number % TRIM_READS == 0:
            return_free_memory()
