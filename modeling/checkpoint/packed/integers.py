"""Weights packed into 32-bit integers: GPTQ, AWQ and compressed-tensors.

A weight is `(code - zero) * scale`, with a scale and a zero per group of inputs.

Shape letters: N outputs, K inputs, G groups of inputs.
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ortolan.modeling.checkpoint.packed.layout import (
    FLOATS,
    UNREAD,
    Packing,
    Part,
    Shape,
    Stored,
    blocks,
    unsupported,
)
from ortolan.modeling.codes import CODE_BITS, CODE_GROUPS, CodedRows, CodeFormat, StoredCodes

WORD_BITS = 32

INDEXES = (torch.int32, torch.int64)
"""Types of the group of each input."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column of each code of a word."""


def unpack(words: Tensor, bits: int) -> Tensor:
    """Unpack words, lowest bits first: int32 `(..., W)` to uint8 `(..., W * 32/bits)`."""
    shifts = torch.arange(0, WORD_BITS, bits, dtype=torch.int32)
    codes = (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return codes.flatten(-2).to(torch.uint8)


@dataclass(frozen=True, kw_only=True)
class Grouped(Packing):
    """A weight of integer codes.

    Attributes:
        stem: prefix of the names.
        shape: `(N, K)`.
        size: inputs that share a scale.
        index: name of a stored tensor that assigns inputs to groups, if there is one.
        symmetric: whether the config says that all zeros are the middle code; None if it does not
            say.
        ordered: whether the config says that groups consist of scattered inputs; None if it does
            not say.
    """

    stem: str
    shape: tuple[int, int]
    bits: int
    size: int
    index: str | None
    symmetric: bool | None
    ordered: bool | None

    @property
    def groups(self) -> int:
        """Number of groups; the last may be shorter."""
        return blocks(self.shape[1], self.size)

    @property
    def middle(self) -> int:
        """The middle code."""
        return 1 << (self.bits - 1)

    @abstractmethod
    def _read(self, stored: Stored, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Codes `(n, K)`, scales and zeros `(n, G)` of rows `[start:stop]`."""

    @abstractmethod
    def _zeros(self, stored: Stored, start: int, stop: int) -> Tensor:
        """Zeros of rows `[start:stop]`, int16 `(n, G)`, since they may not be codes."""

    def check(self, stored: Stored) -> None:
        """Check all zeros and the order of the inputs against the config."""
        if self.symmetric and not bool((self._all_zeros(stored) == self.middle).all()):
            raise unsupported(
                f"{self.stem}: zero points",
                f"the middle code {self.middle}, as in every symmetric checkpoint",
                "others",
            )
        groups = self._groups(stored)
        if int(groups.min()) < 0 or int(groups.max()) >= self.groups:
            raise unsupported(f"{self.index}", f"from 0 to {self.groups - 1}", "others")
        is_ordered = not torch.equal(groups, self._adjacent())
        if is_ordered and self.ordered is False:
            raise unsupported(
                f"{self.index}",
                "in order, since the config declares no activation order",
                "another order",
            )

    def rows(self, stored: Stored, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]`, float32."""
        codes, scales, zeros = self._read(stored, start, stop)
        groups = self._groups(stored)
        return (codes.float() - zeros.float()[:, groups]) * scales.float()[:, groups]

    def codes(self, stored: Stored) -> StoredCodes:
        """Its codes; no kernel supports them unless groups consist of adjacent inputs."""
        return StoredCodes(partial(self._format, stored), partial(self._codes, stored))

    def _format(self, stored: Stored) -> CodeFormat | None:
        if self.bits not in CODE_BITS or self.size not in CODE_GROUPS or self.shape[1] % self.size:
            return None
        if not torch.equal(self._groups(stored), self._adjacent()):
            return None
        zeros = self._all_zeros(stored)
        if int(zeros.min()) < 0 or int(zeros.max()) >= 1 << self.bits:
            return None
        return CodeFormat(self.bits, self.size, bool((zeros == self.middle).all()))

    def _codes(self, stored: Stored, start: int, stop: int) -> CodedRows:
        codes, scales, zeros = self._read(stored, start, stop)
        return CodedRows(codes, scales.float(), zeros.to(torch.uint8), torch.zeros(scales.shape))

    def _all_zeros(self, stored: Stored) -> Tensor:
        return self._zeros(stored, 0, self.shape[0])

    def _adjacent(self) -> Tensor:
        """Group of each input if groups consist of adjacent inputs."""
        return torch.arange(self.shape[1]) // self.size

    def _groups(self, stored: Stored) -> Tensor:
        """Group of each input, int64 `(K,)`."""
        if self.index is not None:
            groups = stored[self.index].read(0, self.shape[1]).long()
            # compressed-tensors stores -1 where no order was computed.
            if not bool((groups == -1).all()):
                return groups
        return self._adjacent()


@dataclass(frozen=True, kw_only=True)
class Columns(Grouped):
    """A weight of GPTQ or AWQ, stored with inputs first.

    Attributes:
        columns: output column of each code of a word; None if codes of inputs share a word.
        less_one: stored zeros are one too low.
    """

    columns: tuple[int, ...] | None
    less_one: bool

    @property
    def parts(self) -> dict[str, Part]:
        """Its stored tensors."""
        outputs, inputs = self.shape
        words = (torch.int32,)
        by_input = (inputs * self.bits // WORD_BITS, outputs)
        by_output = (inputs, outputs * self.bits // WORD_BITS)
        parts = {
            "qweight": Part([by_input if self.columns is None else by_output], words),
            "qzeros": Part([(self.groups, outputs * self.bits // WORD_BITS)], words),
            "scales": Part([(self.groups, outputs)], FLOATS),
        }
        index = {} if self.index is None else {self.index: Part([(inputs,)], INDEXES)}
        return {f"{self.stem}{name}": part for name, part in parts.items()} | index

    def _read(self, stored: Stored, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        scales = stored[f"{self.stem}scales"].read(start, stop, 1).T
        zeros = self._zeros(stored, start, stop)
        if self.columns is None:
            words = stored[f"{self.stem}qweight"].read(start, stop, 1).T
            return unpack(words.contiguous(), self.bits), scales, zeros
        return self._outputs(stored, "qweight", start, stop).T, scales, zeros

    def _zeros(self, stored: Stored, start: int, stop: int) -> Tensor:
        zeros = self._outputs(stored, "qzeros", start, stop)
        return zeros.T.to(torch.int16) + int(self.less_one)

    def _outputs(self, stored: Stored, name: str, start: int, stop: int) -> Tensor:
        """Codes of outputs `[start:stop]` if outputs share words, `(inputs or groups, n)`."""
        share = WORD_BITS // self.bits
        first, last = start // share, blocks(stop, share)
        words = stored[f"{self.stem}{name}"].read(first, last, 1)
        codes = unpack(words.contiguous(), self.bits)
        if self.columns is not None:
            places = torch.tensor(self.columns).argsort()
            codes = codes.view(len(codes), -1, share)[..., places].flatten(1)
        return codes[:, start - first * share : stop - first * share]


@dataclass(frozen=True, kw_only=True)
class Rows(Grouped):
    """A weight of compressed-tensors, stored with outputs first; codes of inputs share a word.

    Attributes:
        whole: one scale, and one zero, for the whole weight.
        zeros: how zeros are stored: the codes of several outputs in a word, as signed numbers, or
            not at all.
        unread: further stored tensors of the weight.
    """

    whole: bool
    zeros: Literal["packed", "signed"] | None
    unread: tuple[str, ...]

    @property
    def parts(self) -> dict[str, Part]:
        """Its stored tensors."""
        outputs, inputs = self.shape
        words = (torch.int32,)
        packed = blocks(inputs * self.bits, WORD_BITS)
        by_row: list[Shape] = [(outputs, self.groups)]
        if self.groups == 1:
            by_row = [(), (1,), (1, 1)] if self.whole else [*by_row, (outputs,)]
        parts = {
            "_packed": Part([(outputs, packed)], words),
            "_scale": Part(by_row, FLOATS),
        }
        if self.zeros == "packed":
            shape = (blocks(outputs * self.bits, WORD_BITS), self.groups)
            parts["_zero_point"] = Part([shape], words)
        elif self.zeros == "signed" or not self.symmetric:
            parts["_zero_point"] = Part(by_row, (torch.int8,))
        index = {} if self.index is None else {self.index: Part([(inputs,)], INDEXES)}
        named = {f"{self.stem}{name}": part for name, part in parts.items()}
        return named | index | dict.fromkeys(self.unread, UNREAD)

    def _read(self, stored: Stored, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        words = stored[f"{self.stem}_packed"].read(start, stop)
        codes = unpack(words, self.bits)[:, : self.shape[1]]
        scales = self._by_row(stored, "_scale", start, stop)
        return codes, scales, self._zeros(stored, start, stop)

    def _zeros(self, stored: Stored, start: int, stop: int) -> Tensor:
        if self.zeros is None:
            return torch.full((stop - start, self.groups), self.middle, dtype=torch.int16)
        if self.zeros == "signed":
            signed = self._by_row(stored, "_zero_point", start, stop)
            return signed.to(torch.int16) + self.middle
        share = WORD_BITS // self.bits
        first, last = start // share, blocks(stop, share)
        words = stored[f"{self.stem}_zero_point"].read(first, last)
        zeros = unpack(words.T.contiguous(), self.bits).T.to(torch.int16)
        return zeros[start - first * share : stop - first * share].contiguous()

    def _by_row(self, stored: Stored, name: str, start: int, stop: int) -> Tensor:
        """A stored tensor with a number per row and group, or one for all, `(n, G)`."""
        if self.whole:
            return stored[f"{self.stem}{name}"].read(0, 1).reshape(1, 1).repeat(stop - start, 1)
        return stored[f"{self.stem}{name}"].read(start, stop).reshape(stop - start, self.groups)
