"""Codes of weights in several schemes, in files until one of each is chosen.

GPTQ fits every weight to activations of the trained model (docs/adr/0014), so codes do not depend
on the schemes of other weights, and can be combined freely.

Shape letters: N rows of a weight, K its columns.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan import files
from ortolan.export.quantize import gptq
from ortolan.export.quantize.blocks import Codes, dequantize, into_groups, joined
from ortolan.export.quantize.places import Place, places_of
from ortolan.export.quantize.refine import refine
from ortolan.export.quantize.rounding import Part, QuantizedWeight, StoredMethod
from ortolan.export.scheme import Scheme
from ortolan.modeling.weights import Weights

Values = Callable[[int, int], Tensor]
"""Dequantized rows `[start:stop]` of a weight, float32; rows of all experts follow one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Rows of a weight, in a file."""

    start: int
    stop: int
    file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A weight in one scheme; `scales` are used instead of those in the files."""

    method: StoredMethod
    loss: float
    rows: Sequence[_Rows]
    scales: Tensor | None = None


class Candidates:
    """Weights in several schemes, in files; memory holds one part of a weight."""

    def __init__(self, folder: Path, weights: Weights) -> None:
        """Start empty."""
        self._folder = folder
        self._weights = weights
        self._candidates: dict[tuple[str, Scheme], _Candidate] = {}
        self._mapped: dict[Path, Mapping[str, Tensor]] = {}

    def add(self, weight: QuantizedWeight) -> None:
        """Store a weight in one scheme; reads its parts."""
        rows: list[_Rows] = []
        loss, start = 0.0, 0
        for part in weight.parts:
            file = self._folder / f"{len(self._candidates)}-{len(rows)}.pt"
            write_tensors(file, _packed(part.codes))
            stop = start + len(part.rows)
            rows.append(_Rows(start=start, stop=stop, file=file))
            loss += _squared_error(part) if part.loss is None else part.loss
            start = stop
        self._candidates[weight.name, weight.scheme] = _Candidate(
            method=weight.method, loss=loss, rows=rows
        )

    def loss(self, name: str, scheme: Scheme) -> float:
        """Squared error of a weight's outputs; comparable between its own schemes only."""
        return self._candidates[name, scheme].loss

    def weight(self, name: str, scheme: Scheme) -> QuantizedWeight:
        """A weight in one scheme, ready to be written."""
        method = self._candidates[name, scheme].method
        parts = self._parts(name, scheme)
        return QuantizedWeight(name=name, scheme=scheme, method=method, parts=parts)

    def instead(
        self, schemes: Mapping[str, Scheme], *, as_kernels: bool = False
    ) -> dict[str, Weights]:
        """Dequantized weights, by the names of the module.

        With `as_kernels`, the inputs of their products are rounded too.
        """
        sources: dict[str, Weights] = {}
        for leaf, place in places_of(self._weights, schemes).items():
            shape, scheme = self._weights.shape(leaf), schemes[place.name]
            values = partial(self.values, place.name, scheme)
            sources[leaf] = (
                _OfKernel(shape, place, values, scheme.group)
                if as_kernels
                else RoundedWeight(shape, place, values)
            )
        return sources

    def rescale(self, name: str, scheme: Scheme, scales: Tensor) -> None:
        """Replace the scales of a weight, `(N, G)`."""
        known = self._candidates[name, scheme]
        self._candidates[name, scheme] = replace(known, method="tuned", scales=scales)

    def scales(self, name: str, scheme: Scheme) -> Tensor:
        """Scales of a weight, `(N, G)`."""
        return self.codes(name, scheme, 0, math.prod(self._weights.shape(name)[:-1])).scales

    def values(self, name: str, scheme: Scheme, start: int, stop: int) -> Tensor:
        """Dequantized rows `[start:stop]` of a weight, float32 `(n, K)`."""
        return dequantize(self.codes(name, scheme, start, stop))

    def codes(self, name: str, scheme: Scheme, start: int, stop: int) -> Codes:
        """Rows `[start:stop]` of a weight; those of all experts follow one another."""
        columns, candidate = self._weights.shape(name)[-1], self._candidates[name, scheme]
        pieces = []
        for rows in candidate.rows:
            low, high = max(start, rows.start) - rows.start, min(stop, rows.stop) - rows.start
            if low < high:
                pieces.append(self._read(rows.file, scheme, columns, low, high))
        codes = pieces[0] if len(pieces) == 1 else joined(pieces)
        scales = candidate.scales
        return codes if scales is None else replace(codes, scales=scales[start:stop])

    def _parts(self, name: str, scheme: Scheme) -> Iterator[Part]:
        *experts, count, _ = self._weights.shape(name)
        for rows in self._candidates[name, scheme].rows:
            codes = self.codes(name, scheme, rows.start, rows.stop)
            if experts:  # rows of all experts follow one another; a part is within one expert
                expert, first = divmod(rows.start, count)
                last = first + rows.stop - rows.start
                values = self._weights.rows(name, expert, expert + 1)[0, first:last]
            else:
                values = self._weights.rows(name, rows.start, rows.stop)
            yield Part(rows=values.float(), codes=codes)

    def _read(self, file: Path, scheme: Scheme, columns: int, start: int, stop: int) -> Codes:
        """Rows `[start:stop]` of a file that `_packed` made; opening one again takes a while."""
        if file not in self._mapped:
            with torch.inference_mode(mode=False):  # they may have gradients later
                self._mapped[file] = torch.load(file, mmap=True, weights_only=True)
        rows = {name: tensor[start:stop] for name, tensor in self._mapped[file].items()}
        values = rows["values"]
        if scheme.bits == 4:
            values = torch.stack((values & 15, values >> 4), -1).flatten(1)[:, :columns]
        return Codes(
            values=values,
            scales=rows["scales"],
            zeros=rows.get("zeros"),
            minimums=rows.get("minimums"),
            scheme=scheme,
        )


def fit_with_loss(weight: Tensor, factor: gptq.Factor, scheme: Scheme) -> Part:
    """Codes of rows by GPTQ, with their loss; 8 bits leave nothing to refine."""
    codes = gptq.round_columns(weight, factor, scheme)
    if scheme.bits == 4:
        codes = refine(weight, codes, factor)
    loss = gptq.output_loss(weight - dequantize(codes), factor)
    return Part(rows=weight, codes=codes, loss=loss)


class RoundedWeight(Weights):
    """A weight of the module, dequantized from the rounded weight that contains it."""

    def __init__(self, shape: tuple[int, ...], place: Place, values: Values) -> None:
        """Prepare; reads nothing."""
        self._shape, self._place, self._values = shape, place, values

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the weight."""
        return self._shape

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]`, float32; whole experts."""
        place = self._place
        if place.transposed:
            return self._values(place.start, place.stop)[:, start:stop].T
        if len(self._shape) == 2:
            return self._values(place.start + start, place.start + stop)
        _, count, columns = self._shape
        first, last = (count * (place.start + expert) for expert in (start, stop))
        return self._values(first, last).view(-1, count, columns)


class _OfKernel(RoundedWeight):
    """As in onnxruntime's CPU kernels, which round activations to 8 bits.

    Activations share a scale in the groups of the weight, from the largest of a group.
    """

    def __init__(self, shape: tuple[int, ...], place: Place, values: Values, group: int) -> None:
        super().__init__(shape, place, values)
        self._group = group

    def rounded(self, entering: Tensor) -> Tensor:
        """The input of a product `(..., K)` as the kernel multiplies it."""
        groups = into_groups(entering.reshape(-1, entering.shape[-1]), self._group)
        scales = groups.abs().amax(-1, keepdim=True) / 127
        steps = groups / scales.masked_fill(scales == 0, 1)
        rounded = (steps.round_() * scales).flatten(1)
        return rounded[:, : entering.shape[-1]].reshape(entering.shape)


def _packed(codes: Codes) -> dict[str, Tensor]:
    """Tensors to save, with two 4-bit codes per byte."""
    values = codes.values
    if codes.scheme.bits == 4:
        pairs = F.pad(values, (0, values.shape[1] % 2))
        values = pairs[:, 0::2] | (pairs[:, 1::2] << 4)
    tensors = {
        "values": values,
        "scales": codes.scales,
        "zeros": codes.zeros,
        "minimums": codes.minimums,
    }
    # A view would be saved with the whole tensor that it is part of.
    return {name: tensor.clone() for name, tensor in tensors.items() if tensor is not None}


def write_tensors(file: Path, value: object) -> None:
    """Write a file for `torch.load`, in one write, so that an error has its usual type."""
    data = BytesIO()
    torch.save(value, data)
    files.write(file, data.getbuffer())


def _squared_error(part: Part) -> float:
    return float((dequantize(part.codes) - part.rows).square().sum())
