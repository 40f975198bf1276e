"""Steps of texts into a cache."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ortolan.modeling import DecoderModel, EncoderDecoderModel
from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.layers.cache import CrossCache, LayerCache, Memory, StepLengths, empty_cache


def after(*lengths: int) -> StepLengths:
    """Lengths for a step after which the rows have these lengths."""
    return StepLengths(
        torch.tensor(lengths, dtype=torch.int32) - 1, torch.tensor(max(lengths), dtype=torch.int32)
    )


def garbage(config: DecoderConfig, *, batch: int, capacity: int) -> list[Memory]:
    """Buffers whose unwritten slots hold large numbers, which a wrong mask would reveal."""
    empty = empty_cache(config, batch=batch, capacity=capacity)
    return [LayerCache(key + 1e3, value - 1e3) for key, value in empty]


def in_steps(
    module: DecoderModel | EncoderDecoderModel,
    ids: Tensor,
    sizes: Iterable[int],
    cache: Sequence[Memory],
    *source: CrossCache,
) -> Tensor:
    """Logits of texts that enter a cache in steps of these sizes, after any source."""
    step: Any = module.step
    pieces, start = [], 0
    for size in sizes:
        stop = start + size
        logits, cache = step(ids[:, start:stop], after(*[stop] * len(ids)), cache, *source)
        pieces.append(logits)
        start = stop
    assert start == ids.shape[1]
    return torch.cat(pieces, 1)
