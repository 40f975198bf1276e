"""Steps of texts into a cache."""

import torch

from ortolan.modeling.config import DecoderConfig
from ortolan.modeling.layers.cache import LayerCache, Memory, StepLengths, empty_cache


def after(*lengths: int) -> StepLengths:
    """Lengths for a step after which the rows have these lengths."""
    return StepLengths(
        torch.tensor(lengths, dtype=torch.int32) - 1, torch.tensor(max(lengths), dtype=torch.int32)
    )


def garbage(config: DecoderConfig, *, batch: int, capacity: int) -> list[Memory]:
    """Buffers whose unwritten slots hold large numbers, which a wrong mask would reveal."""
    empty = empty_cache(config, batch=batch, capacity=capacity)
    return [LayerCache(key + 1e3, value - 1e3) for key, value in empty]
