"""A published tensor that is stored as several others."""

from typing import Protocol

from torch import Tensor

from ortolan.modeling.weights import CodedRows, CodeFormat, TensorSource


class Packing(Protocol):
    """How a tensor is made of stored ones."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        ...

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the tensors that it is made of."""
        ...

    def rows(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """Its rows `[start:stop]`, dequantized."""
        ...

    def code_format(self, source: TensorSource) -> CodeFormat | None:
        """The format of its codes, where kernels can compute with them as they are."""
        ...

    def codes(self, source: TensorSource, start: int, stop: int) -> CodedRows:
        """The codes of its rows `[start:stop]`, in that format."""
        ...


class Uncoded:
    """The part of a packing whose numbers no kernel takes."""

    def code_format(self, source: TensorSource) -> CodeFormat | None:
        """None."""
        del source
        return None

    def codes(self, source: TensorSource, start: int, stop: int) -> CodedRows:
        """There are none."""
        raise NotImplementedError(f"rows {start} to {stop} of {source} have no codes")
