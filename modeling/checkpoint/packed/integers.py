"""Weights packed into 32-bit integers: GPTQ, AWQ and compressed-tensors.

A weight is `(code - zero) * scale`, with a scale and a zero per group of inputs.

Shape letters: N outputs, K inputs, G groups of inputs.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ortolan.modeling.weights import CODE_BITS, CODE_GROUPS, CodedRows, CodeFormat, TensorSource

WORD_BITS = 32

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column of each code of a word."""


def unpack(words: Tensor, bits: int) -> Tensor:
    """Unpack words, lowest bits first: int32 `(..., W)` to uint8 `(..., W * 32/bits)`."""
    shifts = torch.arange(0, WORD_BITS, bits, dtype=torch.int32)
    codes = (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return codes.flatten(-2).to(torch.uint8)


def dequantize(codes: Tensor, scales: Tensor, zeros: Tensor, groups: Tensor) -> Tensor:
    """Values, float32 `(N, K)`, from scales and zeros `(N, G)` and the group of each input."""
    return (codes.float() - zeros.float()[:, groups]) * scales.float()[:, groups]


@dataclass(frozen=True)
class Grouped(ABC):
    """A weight of integer codes.

    Attributes:
        stem: prefix of the names.
        shape: `(N, K)`.
        bits: bits per code.
        groups: number of groups.
        index: name of a stored tensor that assigns inputs to groups, if there is one.
    """

    stem: str
    shape: tuple[int, int]
    bits: int
    groups: int
    index: str | None

    @abstractmethod
    def _read(self, source: TensorSource, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Codes `(n, K)`, scales and zeros `(n, G)` of rows `[start:stop]`."""

    @abstractmethod
    def _is_symmetric(self, source: TensorSource) -> bool | None:
        """Whether all zeros are the middle code; None if a zero is not a code."""

    def rows(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]`, float32."""
        codes, scales, zeros = self._read(source, start, stop)
        return dequantize(codes, scales, zeros, self._groups(source))

    def code_format(self, source: TensorSource) -> CodeFormat | None:
        """Format of its codes; None unless groups consist of adjacent inputs."""
        size = -(-self.shape[1] // self.groups)
        if self.bits not in CODE_BITS or size not in CODE_GROUPS:
            return None
        if not torch.equal(self._groups(source), torch.arange(self.shape[1]) // size):
            return None
        symmetric = self._is_symmetric(source)
        return None if symmetric is None else CodeFormat(self.bits, size, symmetric)

    def codes(self, source: TensorSource, start: int, stop: int) -> CodedRows:
        """Codes of rows `[start:stop]`."""
        codes, scales, zeros = self._read(source, start, stop)
        return CodedRows(codes, scales.float(), zeros.to(torch.uint8), torch.zeros(scales.shape))

    def _groups(self, source: TensorSource) -> Tensor:
        """Group of each input, int64 `(K,)`."""
        inputs = self.shape[1]
        if self.index is not None:
            return source.read(self.index, 0, inputs).long()
        return torch.arange(inputs) // -(-inputs // self.groups)


@dataclass(frozen=True)
class Columns(Grouped):
    """A weight of GPTQ or AWQ, stored with inputs first.

    Attributes:
        columns: output column of each code of a word; None if codes of inputs share a word.
        less_one: stored zeros are one too low.
    """

    columns: tuple[int, ...] | None
    less_one: bool

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of its stored tensors."""
        names = tuple(f"{self.stem}{name}" for name in ("qweight", "qzeros", "scales"))
        return names if self.index is None else (*names, self.index)

    def _read(self, source: TensorSource, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        scales = source.read(f"{self.stem}scales", start, stop, axis=1).T
        zeros = self._zeros(source, start, stop)
        if self.columns is None:
            words = source.read(f"{self.stem}qweight", start, stop, axis=1).T
            return unpack(words.contiguous(), self.bits)[:, : self.shape[1]], scales, zeros
        return self._outputs(source, "qweight", start, stop).T, scales, zeros

    def _is_symmetric(self, source: TensorSource) -> bool | None:
        zeros = self._zeros(source, 0, self.shape[0])
        if int(zeros.max()) >= 1 << self.bits:
            return None
        return bool((zeros == 1 << (self.bits - 1)).all())

    def _zeros(self, source: TensorSource, start: int, stop: int) -> Tensor:
        """Zeros, int16 `(n, G)`, since they may exceed the largest code by one."""
        stored = self._outputs(source, "qzeros", start, stop)
        return stored.T.to(torch.int16) + int(self.less_one)

    def _outputs(self, source: TensorSource, name: str, start: int, stop: int) -> Tensor:
        """Codes of outputs `[start:stop]` if outputs share words, `(inputs or groups, n)`."""
        share = WORD_BITS // self.bits
        first, last = start // share, -(-stop // share)
        words = source.read(f"{self.stem}{name}", first, last, axis=1)
        codes = unpack(words.contiguous(), self.bits)
        if self.columns is not None:
            places = torch.tensor(self.columns).argsort()
            codes = codes.view(len(codes), -1, share)[..., places].flatten(1)
        return codes[:, start - first * share : stop - first * share]


@dataclass(frozen=True)
class Rows(Grouped):
    """A weight of compressed-tensors, stored with outputs first; codes of inputs share a word.

    Attributes:
        symmetric: zeros are not stored.
        unused: further stored tensors of the weight, which are not read.
    """

    symmetric: bool
    unused: tuple[str, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of its stored tensors."""
        names = ["_packed", "_scale"]
        names += [] if self.symmetric else ["_zero_point"]
        index = () if self.index is None else (self.index,)
        return (*(f"{self.stem}{name}" for name in names), *index, *self.unused)

    def _read(self, source: TensorSource, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        words = source.read(f"{self.stem}_packed", start, stop)
        codes = unpack(words, self.bits)[:, : self.shape[1]]
        scales = source.read(f"{self.stem}_scale", start, stop)
        if self.symmetric:
            middle = torch.full(scales.shape, 1 << (self.bits - 1), dtype=torch.uint8)
            return codes, scales, middle
        # Zeros of several outputs share a word.
        share = WORD_BITS // self.bits
        first, last = start // share, -(-stop // share)
        words = source.read(f"{self.stem}_zero_point", first, last)
        zeros = unpack(words.T.contiguous(), self.bits).T
        return codes, scales, zeros[start - first * share : stop - first * share].contiguous()

    def _is_symmetric(self, source: TensorSource) -> bool | None:
        del source
        return self.symmetric
