"""Measures how far rounding some weights moves a model from the trained one.

Variants of the model run side by side (`ortolan.export.streamed`): every weight is read once for
all of them, and up to its first rounded weight a variant costs nothing:

    trained      q ── k ── v ── out ── up ── down ── head
    k rounded         └── k' ─ v ── out ── up ── down ── head
    up rounded                       └─── up' ─ down ── head

Shape letters: S tokens, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan import files
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs, calls
from ortolan.export.progress import Progress, silent
from ortolan.export.quantize.candidates import read_tensors, write_tensors
from ortolan.export.streamed import Result, run
from ortolan.modeling.weights import Weights
from ortolan.runtime.bundle.kinds import OUTPUTS

TOKENS_AT_ONCE = 8192
"""Tokens that run side by side: as many as GPTQ calibrates on."""

_ROWS = 64
"""Rows of logits to compare at once."""

Rounded = Mapping[str, Weights]
"""Other sources of weights of a module, by their names."""


class Reference:
    """Outputs of the trained model for some inputs, in files."""

    def __init__(
        self,
        model: Exportable,
        inputs: Inputs,
        folder: Path,
        *,
        dtype: torch.dtype = torch.float32,
        progress: Progress = silent,
    ) -> None:
        """Compute the outputs, and store them in a type; creates the folder if it is missing."""
        files.make_folders(folder)
        self._model, self._inputs, self._folder = model, inputs, folder
        texts, done = calls(model, inputs), 0
        for event in run(model.module, model.weights, texts):
            if isinstance(event, Result):
                write_tensors(folder / f"{event.index}.pt", event.value.to(dtype))
                done += 1
                progress("outputs", done, len(texts))

    def output(self, index: int) -> Tensor:
        """The output for an input, in its file."""
        stored: Tensor = read_tensors(self._folder / f"{index}.pt")
        return stored

    def distances(self, variants: Sequence[Rounded], progress: Progress = silent) -> list[float]:
        """Mean KL divergence of logits in nats, or cosine distance of vectors, of each variant."""
        batch = max(1, TOKENS_AT_ONCE // sum(lengths(self._model, self._inputs)))
        means: list[float] = []
        for start in range(0, len(variants), batch):
            means += self._distances(variants[start : start + batch])
            progress("effects", len(means), len(variants))
        return means

    def _distances(self, variants: Sequence[Rounded]) -> list[float]:
        model, texts = self._model, calls(self._model, self._inputs)
        sums, counts = [0.0] * len(variants), [0] * len(variants)
        instead = [variant for variant in variants for _ in texts]
        for event in run(model.module, model.weights, texts * len(variants), instead=instead):
            if isinstance(event, Result):
                variant, index = divmod(event.index, len(texts))
                of_rows = distances(self.output(index), event.value, model.output_kind)
                sums[variant] += float(of_rows.sum())
                counts[variant] += len(of_rows)
        return [total / count for total, count in zip(sums, counts, strict=True)]


def distances(expected: Tensor, got: Tensor, kind: str) -> Tensor:
    """Distance of each row from the expected one, float64."""
    expected, got = (rows.reshape(-1, rows.shape[-1]) for rows in (expected, got))
    output = OUTPUTS[kind]
    if output.scores == "none":
        error = (expected.double() - got.double()).square().sum(-1)
        return error / (2 * expected.double().square().sum(-1).clamp_min(1e-12))
    if not output.are_logits:
        return 1 - F.cosine_similarity(expected.double(), got.double(), dim=-1)
    if output.scores == "sigmoid" or expected.shape[-1] == 1:
        return _independent_divergence(expected.double(), got.double())
    rows = zip(torch.split(expected, _ROWS), torch.split(got, _ROWS), strict=True)
    return torch.cat([_divergence(first, second) for first, second in rows])


def _divergence(expected_SV: Tensor, got_SV: Tensor) -> Tensor:
    expected, got = (F.log_softmax(logits.float(), -1) for logits in (expected_SV, got_SV))
    return (expected.exp() * (expected - got)).sum(-1, dtype=torch.float64)


def _independent_divergence(expected_SL: Tensor, got_SL: Tensor) -> Tensor:
    """Divergence of independent labels, or of a single one."""
    return sum(
        (
            F.sigmoid(sign * expected_SL)
            * (F.logsigmoid(sign * expected_SL) - F.logsigmoid(sign * got_SL))
            for sign in (1, -1)
        ),
        torch.zeros_like(expected_SL),
    ).sum(-1)


def some_of(model: Exportable, inputs: Inputs, tokens: int) -> Inputs:
    """The first inputs, at least one, with about this many tokens in all."""
    known, count = lengths(model, inputs), 1
    while count < len(known) and sum(known[:count]) + known[count] / 2 < tokens:
        count += 1
    return replace(inputs, sources=inputs.sources[:count], ids=inputs.ids[:count])


def lengths(model: Exportable, inputs: Inputs) -> list[int]:
    """Tokens of each input; for an image, its patch vectors."""
    sides = [side for side in (inputs.sources, inputs.ids) if side]
    return [
        sum(len(side) if side.dim() == 1 else model.context_length for side in both)
        for both in zip(*sides, strict=True)
    ]
