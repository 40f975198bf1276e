"""Codes of weights, perhaps in several schemes until one of each is chosen, in files.

The folder outlives an export that is interrupted: a weight in a scheme is finished with its index,
which has the hash of every file. GPTQ fits every weight to activations of the trained model
(docs/adr/0014), so codes do not depend on the schemes of other weights, and can be combined freely.

Shape letters: N rows of a weight, K its columns.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from ortolan import files
from ortolan.export.quantize.blocks import Codes, dequantize, into_bytes, into_groups, joined
from ortolan.export.quantize.places import Place, places_of
from ortolan.export.quantize.rounding import Part, QuantizedWeight, StoredMethod
from ortolan.export.scheme import Scheme
from ortolan.modeling.weights import Weights

INDEX = ".json"
"""Suffix of the index of a weight in a scheme, which is written last."""


class _Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a weight, in a file."""

    start: int
    stop: int
    file: str
    sha256: str


class _Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A weight in one scheme, as its index has it."""

    name: str
    scheme: Scheme
    method: StoredMethod
    loss: float
    rows: list[_Rows]


class Candidates:
    """Weights in several schemes, in files; memory holds one part of a weight.

    Attributes:
        weights: the weights that were rounded.
    """

    def __init__(self, folder: Path, weights: Weights) -> None:
        """Find what is finished in the folder."""
        self._folder = folder
        self.weights = weights
        known = [_read_index(path) for path in folder.glob(f"*{INDEX}")]
        self._candidates = {(own.name, own.scheme): own for own in known if own is not None}
        self._scales: dict[tuple[str, Scheme], Tensor] = {}
        self._mapped: dict[str, Mapping[str, Tensor]] = {}

    def __contains__(self, key: object) -> bool:
        """Whether a weight is finished in a scheme: `(name, scheme)`."""
        return key in self._candidates

    def add(self, weight: QuantizedWeight) -> None:
        """Store a weight in one scheme; reads its parts."""
        key = weight.name, weight.scheme
        label = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
        rows: list[_Rows] = []
        loss, start = 0.0, 0
        for part in weight.parts:
            file, stop = f"{label}-{len(rows)}.pt", start + len(part.rows)
            sha256 = write_tensors(self._folder / file, _packed(part.codes))
            rows.append(_Rows(start=start, stop=stop, file=file, sha256=sha256))
            loss += _squared_error(part) if part.loss is None else part.loss
            start = stop
        name, scheme = key
        own = _Candidate(name=name, scheme=scheme, method=weight.method, loss=loss, rows=rows)
        with files.replaced(self._folder / f"{label}{INDEX}", is_synced=False) as new:
            new.write(msgspec.json.encode(own))
        self._candidates[key] = own

    def loss(self, name: str, scheme: Scheme) -> float:
        """Squared error of a weight's outputs; comparable between its own schemes only."""
        return self._candidates[name, scheme].loss

    def weight(self, name: str, scheme: Scheme) -> QuantizedWeight:
        """A weight in one scheme, ready to be written."""
        is_tuned = (name, scheme) in self._scales
        method = "tuned" if is_tuned else self._candidates[name, scheme].method
        parts = self._parts(name, scheme)
        return QuantizedWeight(name=name, scheme=scheme, method=method, parts=parts)

    def instead(
        self, schemes: Mapping[str, Scheme], *, as_kernels: bool = False
    ) -> dict[str, Weights]:
        """Dequantized weights, by the names of the module.

        With `as_kernels`, the inputs of their products are rounded too.
        """
        form = _OfKernel if as_kernels else RoundedWeight
        return {
            leaf: form(self, place, schemes[place.name])
            for leaf, place in places_of(self.weights, schemes).items()
        }

    def rescale(self, name: str, scheme: Scheme, scales: Tensor) -> None:
        """Replace the scales of a weight, `(N, G)`, in memory."""
        self._scales[name, scheme] = scales

    def scales(self, name: str, scheme: Scheme) -> Tensor:
        """Scales of a weight, `(N, G)`."""
        return self.codes(name, scheme, 0, math.prod(self.weights.shape(name)[:-1])).scales

    def codes(self, name: str, scheme: Scheme, start: int, stop: int) -> Codes:
        """Rows `[start:stop]` of a weight; those of all experts follow one another."""
        columns, candidate = self.weights.shape(name)[-1], self._candidates[name, scheme]
        pieces = []
        for rows in candidate.rows:
            low, high = max(start, rows.start) - rows.start, min(stop, rows.stop) - rows.start
            if low < high:
                pieces.append(self._read(rows.file, scheme, columns, low, high))
        codes = pieces[0] if len(pieces) == 1 else joined(pieces)
        scales = self._scales.get((name, scheme))
        return codes if scales is None else replace(codes, scales=scales[start:stop])

    def _parts(self, name: str, scheme: Scheme) -> Iterator[Part]:
        count = math.prod(self.weights.shape(name)[1:-1])  # rows of an expert
        for rows in self._candidates[name, scheme].rows:
            codes = self.codes(name, scheme, rows.start, rows.stop)
            expert, first = divmod(rows.start, count)
            read = self.weights.rows(name, expert, -(-rows.stop // count)).flatten(0, -2)
            values = read[first:][: rows.stop - rows.start]
            yield Part(rows=values.float(), codes=codes)
            del codes, self._mapped[rows.file]  # written once

    def _read(self, file: str, scheme: Scheme, columns: int, start: int, stop: int) -> Codes:
        """Rows `[start:stop]` of a file that `_packed` made; opening one again takes a while."""
        if file not in self._mapped:
            with torch.inference_mode(mode=False):  # they may have gradients later
                self._mapped[file] = read_tensors(self._folder / file)
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


class RoundedWeight(Weights):
    """A weight of the module, dequantized from the rounded weight that contains it."""

    def __init__(self, candidates: Candidates, place: Place, scheme: Scheme) -> None:
        """Prepare; reads nothing."""
        self._candidates, self._place, self._scheme = candidates, place, scheme

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the weight."""
        return self._candidates.weights.shape(name)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]`, float32; whole experts."""
        place, shape = self._place, self.shape(name)
        if place.transposed:
            return self._values(place.start, place.stop)[:, start:stop].T
        count = math.prod(shape[1:-1])  # rows of an expert
        first, last = (count * (place.start + number) for number in (start, stop))
        return self._values(first, last).view(-1, *shape[1:])

    def _values(self, start: int, stop: int) -> Tensor:
        """Rows of the rounded weight; rows of all experts follow one another."""
        return dequantize(self._candidates.codes(self._place.name, self._scheme, start, stop))


class _OfKernel(RoundedWeight):
    """As in onnxruntime's CPU kernels, which round activations to 8 bits.

    Activations share a scale in the groups of the weight, from the largest of a group.
    """

    def rounded(self, entering: Tensor) -> Tensor:
        """The input of a product `(..., K)` as the kernel multiplies it."""
        groups = into_groups(entering.reshape(-1, entering.shape[-1]), self._scheme.group)
        scales = groups.abs().amax(-1, keepdim=True) / 127
        steps = groups / scales.masked_fill(scales == 0, 1)
        rounded = (steps.round_() * scales).flatten(1)
        return rounded[:, : entering.shape[-1]].reshape(entering.shape)


def _packed(codes: Codes) -> dict[str, Tensor]:
    """Tensors to save, with two 4-bit codes per byte."""
    tensors = {
        "values": into_bytes(codes.values, codes.scheme.bits),
        "scales": codes.scales,
        "zeros": codes.zeros,
        "minimums": codes.minimums,
    }
    # A view would be saved with the whole tensor that it is part of.
    return {name: tensor.clone() for name, tensor in tensors.items() if tensor is not None}


def write_tensors(path: Path, value: object, *, is_synced: bool = False) -> str:
    """Write a file for `read_tensors`, in one write, and return its hash."""
    data = BytesIO()
    torch.save(value, data)
    with files.replaced(path, is_synced=is_synced) as new:
        new.write(data.getbuffer())
    return hashlib.sha256(data.getbuffer()).hexdigest()


def read_tensors(path: Path) -> Any:
    """Read a file of `write_tensors`; tensors are mapped."""
    return torch.load(path, mmap=True, weights_only=True)


def _read_index(path: Path) -> _Candidate | None:
    """A finished weight; None where the disk lost part of it, such as without power."""
    try:
        index = msgspec.json.decode(path.read_bytes(), type=_Candidate)
        for rows in index.rows:
            data = (path.parent / rows.file).read_bytes()
            if hashlib.sha256(data).hexdigest() != rows.sha256:
                return None
    except (OSError, msgspec.MsgspecError):
        return None
    return index


def _squared_error(part: Part) -> float:
    return float((dequantize(part.codes) - part.rows).square().sum())
