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
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ortolan import files
from ortolan.export.errors import ExportError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs, calls
from ortolan.export.products import linear
from ortolan.export.progress import Progress, silent
from ortolan.export.quantize.blocks import into_groups, steps_of
from ortolan.export.quantize.candidates import Candidates, read_tensors, write_tensors
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

WRITE_S = 10.0
"""Seconds of training that an interruption may lose, besides a step."""


def steps_on(tokens: int, model: Exportable, names: Collection[str]) -> int:
    """Steps of training on this many tokens that take minutes; 0 where too few do.

    `names` are those of the weights that are rounded.
    """
    return 0 if obstacle(tokens, model, names) else _steps(tokens, _count(model, names))


def obstacle(tokens: int, model: Exportable, names: Collection[str]) -> str | None:
    """Why no scales are trained on this many tokens; None where they are."""
    if model.takes_one:  # every product would run once per token
        return "the model reads its tokens one by one"
    weights = _count(model, names)
    if not weights:
        return "every weight keeps the codes of the checkpoint"
    if EPOCHS * tokens < LEAST_STEPS * TOKENS:
        return f"{tokens:,} tokens are too few; pass more with --calibration"
    if _steps(tokens, weights) < LEAST_STEPS:
        return f"it would take too long for {weights / 1e9:.2g} billion weights"
    return None


def _count(model: Exportable, names: Collection[str]) -> int:
    return sum(math.prod(model.weights.shape(name)) for name in names)


def _steps(tokens: int, weights: int) -> int:
    return min(EPOCHS * tokens, MOST_WORK // weights) // TOKENS


def train_scales(
    model: Exportable,
    candidates: Candidates,
    schemes: Mapping[str, Scheme],
    inputs: Inputs,
    work: Path,
    progress: Progress = silent,
) -> None:
    """Train the scales of all 4-bit matrices among the candidates, if that takes minutes.

    Args:
        model: the trained model.
        candidates: the codes of every weight, whose scales are replaced.
        schemes: by the names of weights.
        inputs: to train on.
        work: folder of what an interrupted training continues with.
        progress: called after every step.

    Raises:
        ExportError: PyTorch cannot differentiate the model.
    """
    steps = steps_on(sum(lengths(model, inputs)), model, schemes)
    if not steps:
        return
    student = Student(model, candidates, schemes)
    if not student.exponents:
        return
    training = _Training(student.exponents, steps, work / "training.pt")
    # Every product takes a block for its weight; to get them anew takes a third of the time.
    return_large_memory(LARGEST_BYTES)
    try:
        if training.step < steps:
            files.remove_folder(work / "outputs")  # of a killed process
            with files.temporary_folder(work / "outputs") as folder:
                reference = Reference(model, inputs, folder, dtype=torch.float16, progress=progress)
                _train(model, student, training, inputs, reference, progress)
    except RuntimeError as error:  # the model runs without gradients, so they are the cause
        reason = str(error).partition("\n")[0]
        raise ExportError(
            f"PyTorch cannot differentiate this model: {reason} Choose --effort normal, which "
            "needs no gradients."
        ) from error
    finally:
        return_large_memory()
        return_free_memory()
    for name, scales in student.scales().items():
        if bool(student.exponents[name].any()):  # else no product reads it
            candidates.rescale(name, schemes[name], scales.detach())


class _Training:
    """Exponents and what their optimizer remembers, in a file from time to time."""

    def __init__(self, exponents: Mapping[str, Tensor], steps: int, path: Path) -> None:
        """Continue from the file, if there is one."""
        self.step, self.steps = 0, steps
        self._exponents, self._path = exponents, path
        self._optimizer = torch.optim.Adam(exponents.values(), betas=MOMENTS)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, RATE, total_steps=steps, pct_start=WARM_UP, cycle_momentum=False
        )
        if path.exists():
            self.step, values, optimizer, schedule = read_tensors(path)
            with torch.no_grad():
                for name, exponent in exponents.items():
                    exponent.copy_(values[name])
            self._optimizer.load_state_dict(optimizer)
            self._schedule.load_state_dict(schedule)
        self._written = time.monotonic()

    def advance(self) -> None:
        """Take a step by the gradients, and forget them."""
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()
        self.step += 1
        if self.step == self.steps or time.monotonic() > self._written + WRITE_S:
            values = {name: exponents.detach() for name, exponents in self._exponents.items()}
            states = (self._optimizer.state_dict(), self._schedule.state_dict())
            write_tensors(self._path, (self.step, values, *states), is_synced=True)
            self._written = time.monotonic()


def _train(
    model: Exportable,
    student: "Student",
    training: _Training,
    inputs: Inputs,
    reference: Reference,
    progress: Progress,
) -> None:
    texts, steps = calls(model, inputs), training.steps
    for batch in islice(_batches(lengths(model, inputs)), training.step, steps):
        rows = sum(reference.output(index)[..., 0].numel() for index in batch)
        for index in batch:
            expected, got = reference.output(index).float(), student.output(texts[index])
            loss = distances(expected, got.float(), model.output_kind).sum() / rows
            loss.backward()  # type: ignore[no-untyped-call]
        training.advance()
        progress("train scales", training.step, steps)


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


Read = Callable[[int, int, Tensor], tuple[Tensor, Tensor | None]]
"""Rows `[start:stop]` of a weight, `(n, K)`, given its scales; and what those multiply, codes minus
zero points `(n, G, group)`, or None where they are not trained."""


class Student:
    """The model with its rounded weights.

    Attributes:
        exponents: the logarithms of what the scales of 4-bit matrices are multiplied by, `(N, G)`,
            by weight.
    """

    def __init__(
        self, model: Exportable, candidates: Candidates, schemes: Mapping[str, Scheme]
    ) -> None:
        self._candidates, self._schemes = candidates, schemes
        self._places = places_of(model.weights, schemes)
        self._scales = {
            name: candidates.scales(name, scheme)
            for name, scheme in schemes.items()
            if scheme.bits == 4 and len(model.weights.shape(name)) == 2
        }
        self.exponents = {
            name: torch.zeros_like(scales, requires_grad=True)
            for name, scales in self._scales.items()
        }
        weights = Replaced(model.weights, candidates.instead(schemes))
        self._lazy = LazyWeights(model.module, weights)

    def scales(self) -> dict[str, Tensor]:
        """The scales, trained so far."""
        return {name: self._scales[name] * e.exp() for name, e in self.exponents.items()}

    def output(self, call: Callable[[], Tensor]) -> Tensor:
        """The output of a call, with a graph of gradients."""
        anchor = torch.ones((), requires_grad=True)
        scales, weights = self.scales(), self._lazy.weights

        def ask(request: Request | Row) -> Tensor:
            if isinstance(request, Row):
                return self._lazy.answer(request)
            place = self._places.get(request.name)
            if place is None or place.name not in scales:
                own, rows = anchor, weights.shape(request.name)[1 if request.is_transposed else 0]
                read: Read = partial(_fixed_rows, weights, request)
            else:
                own, read = scales[place.name][place.start : place.stop], partial(self._rows, place)
                rows = place.stop - place.start
            y: Tensor = _Streamed.apply(request.entering, own, read, rows)  # type: ignore[no-untyped-call]
            return y if request.bias is None else y + request.bias

        with self._lazy.asking(ask):
            return call()

    def _rows(self, place: Place, start: int, stop: int, scales: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of a product, whose weight may be a part of a rounded one."""
        first, scheme = place.start, self._schemes[place.name]
        codes = self._candidates.codes(place.name, scheme, first + start, first + stop)
        steps = steps_of(codes)
        values = (steps * scales[start:stop, :, None]).flatten(1)
        return values[:, : codes.values.shape[1]], steps


def _fixed_rows(
    weights: Weights, request: Request, start: int, stop: int, _: Tensor
) -> tuple[Tensor, None]:
    """Rows of a weight that is not trained."""
    if not request.is_transposed:
        return weights.rows(request.name, start, stop).float(), None
    whole = weights.rows(request.name, 0, request.entering.shape[-1])
    return whole[:, start:stop].T.float(), None


class _Streamed(torch.autograd.Function):
    """A product that reads its weight forward and backward, a few rows at a time.

    `scales` require a gradient even where the weight has none, so that the output does if `x` does
    not.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: Tensor, read: Read, rows: int) -> Tensor:
        ctx.save_for_backward(x, scales)
        ctx.read = read
        out = x.new_empty(*x.shape[:-1], rows)
        for part in _chunks(rows, x.shape[-1]):
            out[..., part] = linear(x, read(part.start, part.stop, scales)[0])
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (of_output,) = gradients
        x, scales = ctx.saved_tensors
        of_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        of_scales = torch.zeros_like(scales)
        for part in _chunks(of_output.shape[-1], x.shape[-1]):
            of_part = of_output[..., part]
            values, steps = ctx.read(part.start, part.stop, scales)
            if of_x is not None:
                of_x += linear(of_part, values.T)
            if steps is not None:
                of_values = linear(of_part.flatten(0, -2).T, x.flatten(0, -2).T)
                of_scales[part] = (into_groups(of_values, steps.shape[-1]) * steps).sum(-1)
        return of_x, of_scales, None, None


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, READ_BYTES // (4 * columns))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
