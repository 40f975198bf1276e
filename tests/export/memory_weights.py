"""Weights in memory."""

from torch import Tensor


class MemoryWeights:
    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        return self.tensors[name][start:stop]
