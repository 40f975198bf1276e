"""Codes of weights in several schemes, kept in files until one of each is chosen.

GPTQ fits every weight to what the trained model computes before it (docs/adr/0014), so the codes
of one do not depend on the scheme of another: found once, they serve every combination.

Shape letters: N rows of a weight, K its columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan import files
from ortolan.export.quantize import gptq
from ortolan.export.quantize.blocks import Codes, dequantize, into_groups
from ortolan.export.quantize.places import Place, places_of
from ortolan.export.quantize.refine import refine
from ortolan.export.quantize.rounding import Part, QuantizedWeight, StoredMethod
from ortolan.export.scheme import Scheme
from ortolan.modeling.weights import Weights

Values = Callable[[int, int], Tensor]
"""Rows `[start:stop]` of what the codes of a stored weight stand for, float32; of experts, those of
all of them one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Some rows of a weight in a file."""

    start: int
    stop: int
    file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A weight in one scheme."""

    method: StoredMethod
    loss: float
    rows: Sequence[_Rows]


class Candidates:
    """Weights in several schemes, in files of a folder.

    On the disk they take their bytes in every scheme, in memory one part of a weight.
    """

    def __init__(self, folder: Path, weights: Weights) -> None:
        """Start with none.

        Args:
            folder: for the files.
            weights: what the codes stand for.
        """
        self._folder = folder
        self._weights = weights
        self._found: dict[tuple[str, Scheme], _Candidate] = {}

    def add(self, weight: QuantizedWeight) -> None:
        """Keep a weight in one scheme; its parts are read."""
        rows: list[_Rows] = []
        loss, start = 0.0, 0
        for part in weight.parts:
            file = self._folder / f"{len(self._found)}-{len(rows)}.pt"
            write_tensors(file, _packed(part.codes))
            stop = start + len(part.rows)
            rows.append(_Rows(start=start, stop=stop, file=file))
            loss += _squared_error(part) if part.loss is None else part.loss
            start = stop
        self._found[weight.name, weight.scheme] = _Candidate(
            method=weight.method, loss=loss, rows=rows
        )

    def loss(self, name: str, scheme: Scheme) -> float:
        """The squared error of what a weight computes; comparable with its own only."""
        return self._found[name, scheme].loss

    def weight(self, name: str, scheme: Scheme) -> QuantizedWeight:
        """A weight in one scheme, to be written."""
        method = self._found[name, scheme].method
        parts = self._parts(name, scheme)
        return QuantizedWeight(name=name, scheme=scheme, method=method, parts=parts)

    def instead(
        self, schemes: Mapping[str, Scheme], *, as_kernels: bool = False
    ) -> dict[str, Weights]:
        """What the codes of some weights stand for, by the names of the module.

        Args:
            schemes: of the weights.
            as_kernels: round what enters their products as well.
        """
        found: dict[str, Weights] = {}
        for leaf, place in places_of(self._weights, schemes).items():
            shape, scheme = self._weights.shape(leaf), schemes[place.name]
            values = partial(self.values, place.name, scheme)
            found[leaf] = (
                _OfKernel(shape, place, values, scheme.group)
                if as_kernels
                else RoundedWeight(shape, place, values)
            )
        return found

    def values(self, name: str, scheme: Scheme, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of what the codes of a weight stand for, float32 `(n, K)`."""
        columns = self._weights.shape(name)[-1]
        found = []
        for rows in self._found[name, scheme].rows:
            low, high = max(start, rows.start) - rows.start, min(stop, rows.stop) - rows.start
            if low < high:
                found.append(dequantize(_read(rows.file, scheme, columns, low, high)))
        return found[0] if len(found) == 1 else torch.cat(found)

    def _parts(self, name: str, scheme: Scheme) -> Iterator[Part]:
        *experts, count, columns = self._weights.shape(name)
        for rows in self._found[name, scheme].rows:
            codes = _read(rows.file, scheme, columns, 0, rows.stop - rows.start)
            if experts:  # the rows of all of them follow one another; no part is of two
                expert, first = divmod(rows.start, count)
                last = first + rows.stop - rows.start
                given = self._weights.rows(name, expert, expert + 1)[0, first:last]
            else:
                given = self._weights.rows(name, rows.start, rows.stop)
            yield Part(rows=given.float(), codes=codes)


def fit(weight: Tensor, factor: gptq.Factor, scheme: Scheme) -> Part:
    """The codes of some rows, by GPTQ, with their error; 8 bits leave nothing to refine."""
    codes = gptq.round_columns(weight, factor, scheme)
    if scheme.bits == 4:
        codes = refine(weight, codes, factor)
    loss = gptq.output_loss(weight - dequantize(codes), factor)
    return Part(rows=weight, codes=codes, loss=loss)


class RoundedWeight:
    """One weight of a module, by the codes of the weight that it is stored in."""

    def __init__(self, shape: tuple[int, ...], place: Place, values: Values) -> None:
        """Read nothing yet.

        Args:
            shape: of the weight.
            place: where it is in the stored one.
            values: of the stored one.
        """
        self._shape, self._place, self._values = shape, place, values

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the weight."""
        return self._shape

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of the weight, float32; of experts, whole ones."""
        place = self._place
        if place.transposed:
            return self._values(place.start, place.stop)[:, start:stop].T
        if len(self._shape) == 2:
            return self._values(place.start + start, place.start + stop)
        _, count, columns = self._shape
        first, last = (count * (place.start + each) for each in (start, stop))
        return self._values(first, last).view(-1, count, columns)


class _OfKernel(RoundedWeight):
    """The same in onnxruntime's kernels for the CPU, which round activations to 8 bits.

    Those that share a scale of the weight share one of their own, by the largest of them.
    """

    def __init__(self, shape: tuple[int, ...], place: Place, values: Values, group: int) -> None:
        super().__init__(shape, place, values)
        self._group = group

    def rounded(self, entering: Tensor) -> Tensor:
        """What enters a product `(..., K)`, as the kernel multiplies it."""
        groups = into_groups(entering.reshape(-1, entering.shape[-1]), self._group)
        scales = groups.abs().amax(-1, keepdim=True) / 127
        steps = groups / scales.masked_fill(scales == 0, 1)
        rounded = (steps.round_() * scales).flatten(1)
        return rounded[:, : entering.shape[-1]].reshape(entering.shape)


def _packed(codes: Codes) -> dict[str, Tensor]:
    """Tensors to save; two codes of 4 bits in a byte."""
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
    # Of a view, all that it is a part of would be saved.
    return {name: each.clone() for name, each in tensors.items() if each is not None}


def write_tensors(file: Path, value: object) -> None:
    """Write what `torch.load` reads, in a file that is one write: an error keeps its type."""
    data = BytesIO()
    torch.save(value, data)
    files.write(file, data.getbuffer())


def _read(file: Path, scheme: Scheme, columns: int, start: int, stop: int) -> Codes:
    """Rows `[start:stop]` of a file that `_packed` made."""
    saved = torch.load(file, mmap=True, weights_only=True)
    of = {name: each[start:stop] for name, each in saved.items()}
    values = of["values"]
    if scheme.bits == 4:
        values = torch.stack((values & 15, values >> 4), -1).flatten(1)[:, :columns]
    return Codes(
        values=values,
        scales=of["scales"],
        zeros=of.get("zeros"),
        minimums=of.get("minimums"),
        scheme=scheme,
    )


def _squared_error(part: Part) -> float:
    return float((dequantize(part.codes) - part.rows).square().sum())
