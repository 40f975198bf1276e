"""Normalisation layers."""

from torch import nn

from ortolan.modeling.config import NormConfig


def norm(config: NormConfig, width: int) -> nn.Module:
    """A norm over the last axis of `(..., width)`."""
    if config.kind == "rms":
        return nn.RMSNorm(width, eps=config.eps)
    return nn.LayerNorm(width, eps=config.eps)
