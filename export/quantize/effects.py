"""How far a model is from the trained one with some of its weights rounded, measured.

Several ways to round it run side by side (`ortolan.export.streamed`): each weight is read once for
all of them, and before the first weight that is rounded they are one.

Shape letters: S tokens, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs, calls
from ortolan.export.progress import Progress, silent
from ortolan.export.quantize.candidates import write_tensors
from ortolan.export.streamed import Result, run
from ortolan.modeling.weights import Weights
from ortolan.runtime.bundle.kinds import OUTPUTS

TOKENS_AT_ONCE = 8192
"""Of inputs that run side by side, as many as GPTQ calibrates on."""

_ROWS = 64
"""Of logits that are compared at once."""

Rounded = Mapping[str, Weights]
"""Where weights of a module are read instead, by their names."""


class Reference:
    """What the trained model gives for some inputs, in files of a folder."""

    def __init__(self, model: Exportable, inputs: Inputs, folder: Path) -> None:
        """Compute it.

        Args:
            model: its weights are read as they are used.
            inputs: of the model.
            folder: empty, for the files.
        """
        self._model, self._inputs, self._folder = model, inputs, folder
        for event in run(model.module, model.weights, calls(model, inputs)):
            if isinstance(event, Result):
                write_tensors(folder / f"{event.index}.pt", event.value)

    def distances(self, variants: Sequence[Rounded], progress: Progress = silent) -> list[float]:
        """How far the model is with each set of rounded weights, on average over all outputs.

        Args:
            variants: the weights.
            progress: told of variants that are done, and all.

        Returns:
            Mean KL divergence of logits, in nats; of vectors, the mean distance of cosines.
        """
        together = max(1, TOKENS_AT_ONCE // sum(_lengths(self._model, self._inputs)))
        found: list[float] = []
        for start in range(0, len(variants), together):
            found += self._distances(variants[start : start + together])
            progress("effects", len(found), len(variants))
        return found

    def _distances(self, variants: Sequence[Rounded]) -> list[float]:
        model, given = self._model, calls(self._model, self._inputs)
        sums, counts = [0.0] * len(variants), [0] * len(variants)
        instead = [variant for variant in variants for _ in given]
        for event in run(model.module, model.weights, given * len(variants), instead=instead):
            if isinstance(event, Result):
                variant, index = divmod(event.index, len(given))
                expected = torch.load(self._folder / f"{index}.pt", mmap=True, weights_only=True)
                each = distances(expected, event.value, model.output)
                sums[variant] += float(each.sum())
                counts[variant] += len(each)
        return [total / count for total, count in zip(sums, counts, strict=True)]


def distances(expected: Tensor, got: Tensor, kind: str) -> Tensor:
    """The distance of each output from the expected one, float64.

    Args:
        expected: what a model gives for one input (`ortolan.export.exportable.Forward`).
        got: what another one gives.
        kind: of output (`runtime.bundle.kinds.OUTPUTS`).
    """
    expected, got = (each.reshape(-1, each.shape[-1]) for each in (expected, got))
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
    wanted, found = (F.log_softmax(each.float(), -1) for each in (expected_SV, got_SV))
    return (wanted.exp() * (wanted - found)).sum(-1, dtype=torch.float64)


def _independent_divergence(expected_SL: Tensor, got_SL: Tensor) -> Tensor:
    """The divergence of labels that do not exclude each other, or of a single one."""
    return sum(
        (
            F.sigmoid(sign * expected_SL)
            * (F.logsigmoid(sign * expected_SL) - F.logsigmoid(sign * got_SL))
            for sign in (1, -1)
        ),
        torch.zeros_like(expected_SL),
    ).sum(-1)


def some_of(model: Exportable, inputs: Inputs, tokens: int) -> Inputs:
    """The first inputs, at least one, that have about so many tokens together, or all."""
    lengths, count = _lengths(model, inputs), 1
    while count < len(lengths) and sum(lengths[:count]) + lengths[count] / 2 < tokens:
        count += 1
    return replace(inputs, sources=inputs.sources[:count], ids=inputs.ids[:count])


def _lengths(model: Exportable, inputs: Inputs) -> list[int]:
    """Tokens of each input; an image has as many as the encoder makes of it."""
    sides = [side for side in (inputs.sources, inputs.ids) if side]
    return [
        sum(len(each) if each.dim() == 1 else model.context_length for each in both)
        for both in zip(*sides, strict=True)
    ]
