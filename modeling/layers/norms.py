"""Normalisation layers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortolan.modeling.config import NormConfig


class WeightlessNorm(nn.Module):
    """A norm without weights."""

    def __init__(self, config: NormConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """`(..., width)` to `(..., width)`."""
        # ONNX norms need a weight; for None, the exporter would emit one of the shape of `x`.
        ones = torch.ones(self.width, dtype=x.dtype, device=x.device)
        if self.config.kind == "rms":
            return F.rms_norm(x, (self.width,), ones, self.config.eps)
        return F.layer_norm(x, (self.width,), ones, eps=self.config.eps)


def norm(config: NormConfig | None, width: int) -> nn.Module:
    """The norm of a config, over the last axis of `(..., width)`; nothing for None."""
    if config is None:
        return nn.Identity()
    if not config.scale:
        return WeightlessNorm(config, width)
    if config.kind == "rms":
        return nn.RMSNorm(width, eps=config.eps)
    return nn.LayerNorm(width, eps=config.eps, bias=config.bias)
