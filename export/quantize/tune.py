"""Trains the scales of rounded weights, so that the outputs of the whole model agree.

GPTQ fits every weight to its own outputs. What the model predicts depends on all of them together,
so afterwards the scales of all 4-bit weights are trained by the divergence from the trained model
on the calibration inputs. Codes stay, and so do bytes and kernels.

Source: Chen et al., "EfficientQAT", 2024, https://arxiv.org/abs/2407.11062, its second phase; here
the logits of the trained model are what to predict, and scales are trained by their logarithms.

Memory: codes are read from files, and every weight exists only while it is used, forward and
backward. What remains are scales with their moments, and the activations of one input.

Shape letters: n rows of a weight, K its columns, G groups of a row, S tokens.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ortolan.export.errors import ExportError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs, calls
from ortolan.export.products import linear
from ortolan.export.progress import Progress, silent
from ortolan.export.quantize.blocks import into_groups, steps_of
from ortolan.export.quantize.candidates import Candidates
from ortolan.export.quantize.effects import Reference, distances, lengths
from ortolan.export.quantize.places import Place, places_of
from ortolan.export.scheme import Scheme
from ortolan.export.streamed import READ_BYTES, LazyWeights, Request, Row
from ortolan.modeling.weights import Replaced, Weights
from ortolan.runtime.machine.memory import (
    LARGEST_BYTES,
    return_free_memory,
    return_large_memory,
)

RATE, MOMENTS = 1e-3, (0.9, 0.95)
"""Peak of the learning rate, which rises over `WARM_UP` of the steps and falls as a cosine; and
the decays of Adam."""

WARM_UP = 0.1

TOKENS = 512
"""Approximate number of tokens of a step."""

EPOCHS = 4

MOST_WORK = 12 << 40
"""Tokens times weights up to which training takes minutes (docs/adr/0020)."""

LEAST_STEPS = 16
"""Fewer steps are not worth their time."""


def training_steps(model: Exportable, inputs: Inputs, names: Iterable[str]) -> int:
    """Steps of training on these inputs that take minutes; 0 where too few do.

    `names` are those of the weights that are rounded.
    """
    return steps_on(sum(lengths(model, inputs)), model, names)


def steps_on(tokens: int, model: Exportable, names: Iterable[str]) -> int:
    """Like `training_steps`, for this many tokens."""
    weights = sum(math.prod(model.weights.shape(name)) for name in names)
    # A model that reads tokens one by one runs every product once per token.
    if model.takes_one or not weights:
        return 0
    steps = min(EPOCHS * tokens, MOST_WORK // weights) // TOKENS
    return steps if steps >= LEAST_STEPS else 0


def tune(
    model: Exportable,
    candidates: Candidates,
    schemes: Mapping[str, Scheme],
    names: Collection[str],
    inputs: Inputs,
    folder: Path,
    steps: int,
    progress: Progress = silent,
) -> None:
    """Train the scales of some of the `candidates`, in place: those in 4 bits.

    Args:
        model: the trained model.
        candidates: the codes of every weight, in its scheme of `schemes`.
        schemes: by the names of weights.
        names: weights whose scales may change, all of them matrices.
        inputs: to train on.
        folder: for temporary files: the outputs of the trained model.
        steps: of training.
        progress: called after every step.

    Raises:
        ExportError: PyTorch cannot differentiate the model.
    """
    reference = Reference(model, inputs, folder, dtype=torch.float16, progress=progress)
    student = Student(model, candidates, schemes, names)
    optimizer = torch.optim.Adam(student.exponents.values(), betas=MOMENTS)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, total_steps=steps, pct_start=WARM_UP, cycle_momentum=False
    )
    texts = calls(model, inputs)
    # Every product takes a block for its weight; to get them anew takes a third of the time.
    return_large_memory(LARGEST_BYTES)
    try:
        for step, batch in enumerate(islice(_batches(lengths(model, inputs)), steps), 1):
            rows = sum(_rows(reference.output(index)) for index in batch)
            optimizer.zero_grad()
            for index in batch:
                expected, got = reference.output(index).float(), student.output(texts[index])
                loss = distances(expected, got.float(), model.output_kind).sum() / rows
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            progress("train scales", step, steps)
    except RuntimeError as error:  # the model runs without gradients, so they are the cause
        reason = str(error).partition("\n")[0]
        raise ExportError(
            f"PyTorch cannot differentiate this model: {reason} Choose --effort normal, which "
            "needs no gradients."
        ) from error
    finally:
        return_large_memory()
        return_free_memory()
    for name, exponents in student.exponents.items():
        if bool(exponents.any()):  # else no product reads it
            scales = candidates.scales(name, schemes[name])
            candidates.rescale(name, schemes[name], scales * exponents.detach().exp())


def _rows(output: Tensor) -> int:
    """Rows that distances are measured of."""
    return output.numel() // output.shape[-1]


def _batches(tokens: Sequence[int]) -> Iterator[list[int]]:
    """Inputs with about `TOKENS` tokens together, in random order, again and again."""
    random = torch.Generator().manual_seed(0)
    batch: list[int] = []
    while True:
        for index in torch.randperm(len(tokens), generator=random).tolist():
            batch.append(index)
            if sum(tokens[each] for each in batch) >= TOKENS or len(batch) == len(tokens):
                yield batch
                batch = []


class Student:
    """The model with its rounded weights.

    Attributes:
        exponents: the logarithms of what scales are multiplied by, `(N, G)`, by weight.
    """

    def __init__(
        self,
        model: Exportable,
        candidates: Candidates,
        schemes: Mapping[str, Scheme],
        names: Collection[str],
    ) -> None:
        self._candidates, self._schemes = candidates, schemes
        self._places = places_of(model.weights, schemes)
        self._scales = {
            name: candidates.scales(name, schemes[name])
            for name in names
            if schemes[name].bits == 4
        }
        self.exponents = {
            name: torch.zeros_like(scales, requires_grad=True)
            for name, scales in self._scales.items()
        }
        weights = Replaced(model.weights, candidates.instead(schemes))
        self._lazy = LazyWeights(model.module, weights)

    def output(self, call: Callable[[], Tensor]) -> Tensor:
        """The output of a call, with a graph of gradients."""
        anchor = torch.ones((), requires_grad=True)
        scales = {name: self._scales[name] * e.exp() for name, e in self.exponents.items()}

        def ask(request: Request | Row) -> Tensor:
            if isinstance(request, Row):
                return self._lazy.answer(request)
            place = self._places.get(request.name)
            if place is None or place.name not in scales:
                y = _product(request.entering, anchor, _Fixed(self._lazy.weights, request))
            else:
                own = scales[place.name][place.start : place.stop]
                scheme, columns = self._schemes[place.name], request.entering.shape[-1]
                trained = _Trained(self._candidates, place, scheme, columns)
                y = _product(request.entering, own, trained)
            return y if request.bias is None else y + request.bias

        with self._lazy.asking(ask):
            return call()


class _Fixed:
    """A weight that is not trained."""

    def __init__(self, weights: Weights, request: Request) -> None:
        self._weights, self._request = weights, request
        shape = weights.shape(request.name)
        self.rows, self.columns = shape[::-1] if request.is_transposed else shape

    def read(self, start: int, stop: int, scales: Tensor) -> tuple[Tensor, None]:
        """Rows of the product's outputs, `(n, K)`."""
        weights, name = self._weights, self._request.name
        if not self._request.is_transposed:
            return weights.rows(name, start, stop).float(), None
        return weights.rows(name, 0, self.columns)[:, start:stop].T.float(), None


class _Trained:
    """The rows of a rounded weight that a product reads."""

    def __init__(self, candidates: Candidates, place: Place, scheme: Scheme, columns: int) -> None:
        self._candidates, self._place, self._scheme = candidates, place, scheme
        self.rows, self.columns = place.stop - place.start, columns

    def read(self, start: int, stop: int, scales: Tensor) -> tuple[Tensor, Tensor]:
        """Rows `(n, K)`, and the codes minus zero points that scales multiply, `(n, G, group)`."""
        first = self._place.start
        codes = self._candidates.codes(self._place.name, self._scheme, first + start, first + stop)
        steps = steps_of(codes)
        values = (steps * scales[start:stop, :, None]).flatten(1)
        return values[:, : self.columns], steps


def _product(x: Tensor, scales: Tensor, weight: _Fixed | _Trained) -> Tensor:
    return cast(Tensor, _Streamed.apply(x, scales, weight))  # type: ignore[no-untyped-call]


class _Streamed(torch.autograd.Function):
    """A product that reads its weight forward and backward, a few rows at a time.

    `scales` require a gradient even where the weight has none, so that the output does if `x` does
    not.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: Tensor, weight: _Fixed | _Trained) -> Tensor:
        ctx.save_for_backward(x, scales)
        ctx.weight = weight
        out = x.new_empty(*x.shape[:-1], weight.rows)
        for rows in _chunks(weight):
            out[..., rows] = linear(x, weight.read(rows.start, rows.stop, scales)[0])
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (of_output,) = gradients
        x, scales = ctx.saved_tensors
        weight: _Fixed | _Trained = ctx.weight
        of_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        of_scales = torch.zeros_like(scales)
        for rows in _chunks(weight):
            part = of_output[..., rows]
            values, steps = weight.read(rows.start, rows.stop, scales)
            if of_x is not None:
                of_x += linear(part, values.T)
            if steps is not None:
                of_values = linear(part.flatten(0, -2).T, x.flatten(0, -2).T)
                of_scales[rows] = (into_groups(of_values, steps.shape[-1]) * steps).sum(-1)
        return of_x, of_scales, None


def _chunks(weight: _Fixed | _Trained) -> Iterator[slice]:
    step = max(1, READ_BYTES // (4 * weight.columns))
    for start in range(0, weight.rows, step):
        yield slice(start, min(start + step, weight.rows))
