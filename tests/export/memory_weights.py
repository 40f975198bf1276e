"""Weights in memory."""

from torch import Tensor

from ortolan.modeling.weights import TensorWeights


class MemoryWeights(TensorWeights):
    def __init__(self, **tensors: Tensor) -> None:
        super().__init__(tensors)
