"""Norms of published models."""

from ortolan.modeling.config import NormConfig


def rms(eps: float, **fields: bool) -> NormConfig:
    """An RMS norm."""
    return NormConfig(kind="rms", eps=eps, **fields)


RMS = rms(1e-6)


def layer_norm(eps: float, **fields: bool) -> NormConfig:
    """A layer norm."""
    return NormConfig(kind="layer", eps=eps, **fields)
