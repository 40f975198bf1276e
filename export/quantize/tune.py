"""Scales of a rounded model, tuned end to end until it predicts what the trained model predicts.

GPTQ fits each weight to what it computes by itself. What is left are errors that add up from
product to product; with the codes as they are, every scale is a number that can make up for some of
them. They are trained like any weight: the loss is the divergence of the rounded model's
predictions from the trained model's, over the texts of the calibration.

The rounded model is the model's own module, whose products read codes (`streamed.LazyWeights`): a
weight is dequantized where it is used, forwards and backwards, and never kept.

Sources: Chen et al., "EfficientQAT", 2024, https://arxiv.org/abs/2407.11062, for training scales
alone; Liu et al., "LLM-QAT", 2023, https://arxiv.org/abs/2305.17888, for the divergence from the
trained model on text that it wrote itself.

Shape letters: S tokens of a text, V vocabulary, P predictions kept of each token; N outputs, K
inputs, G groups of a weight.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs, calls
from ortolan.export.precision import StoredMethod
from ortolan.export.products import linear
from ortolan.export.quantize.blocks import Codes, dequantize, into_groups, joined
from ortolan.export.quantize.guide import streamed_product
from ortolan.export.quantize.places import places_of, tables_of
from ortolan.export.quantize.rounded import rounded_weights
from ortolan.export.quantize.rounding import Part, QuantizedWeight, row_chunks
from ortolan.export.streamed import LazyWeights, Request, Result, Row, run
from ortolan.modeling.weights import Weights
from ortolan.runtime.machine.memory import return_free_memory

KEPT = 64
"""Predictions kept of what the trained model says of each token; all others count as one."""

BATCH = 4
"""Texts of a step."""

RATE = 5e-3
"""Of learning, in units of each scale; it rises for `WARM_UP` steps and falls to 0 as a cosine."""

WARM_UP = 4

PASSES = 1
"""Over the texts."""

BETAS, EPSILON = (0.9, 0.95), 1e-12
"""Of Adam."""

LEAST = 1e-5
"""Probability of all predictions that are not kept: float32 tells no smaller one from 0."""


class Predictions(NamedTuple):
    """What the trained model says of each token of a text.

    Attributes:
        ids: of the most probable tokens, `(S, P)`.
        logs: logarithms of their probabilities, `(S, P)`.
    """

    ids: Tensor
    logs: Tensor


def tuned(
    model: Exportable,
    quantized: Iterable[QuantizedWeight],
    inputs: Inputs,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[QuantizedWeight]:
    """The same codes with tuned scales; those of experts, and of tables of tokens, stay.

    In memory are all codes, a byte each, and what PyTorch keeps of one text for its gradients.

    Args:
        model: as it was trained.
        quantized: weights, and their codes.
        inputs: texts of the calibration.
        progress: told after every text.

    Yields:
        Each weight once; read its parts before the next weight.
    """
    found = []
    for weight in quantized:
        if len(model.weights.shape(weight.name)) == 2:
            found.append(_Rounded.of(weight))
        else:
            yield weight
    tables = tables_of(model.module)
    _train(
        model, [each for each in found if each.weight.name not in tables], found, inputs, progress
    )
    for each in found:
        method: StoredMethod = each.weight.method if each.weight.name in tables else "tuned"
        yield replace(each.weight, method=method, parts=_parts(model.weights, each))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rounded:
    """A weight whose scales are trained.

    Attributes:
        weight: what is known of it; its parts are gone.
        codes: of all its rows.
        change: float32 `(N, G)`, what is added to each scale, in units of it.
    """

    weight: QuantizedWeight
    codes: Codes
    change: Tensor

    @classmethod
    def of(cls, weight: QuantizedWeight) -> "_Rounded":
        """All rows of a weight."""
        codes = joined([part.codes for part in weight.parts])
        return cls(
            weight=weight, codes=codes, change=torch.zeros_like(codes.scales, requires_grad=True)
        )

    def scales(self) -> Tensor:
        """As they are by now, `(N, G)`; gradients reach `change`."""
        return self.codes.scales * (1 + self.change)

    def tuned(self) -> Codes:
        """The codes with the scales as they are by now."""
        return replace(self.codes, scales=self.scales().detach())


class _Product(torch.autograd.Function):
    """A product with some rows of a weight, which is dequantized forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scales_NG: Tensor, codes: Codes) -> Tensor:
        """`x W^T`."""
        ctx.save_for_backward(x, scales_NG)
        ctx.codes = codes
        return linear(x, dequantize(replace(codes, scales=scales_NG)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Of the inputs, and of the scales: that of the weight times the steps, over a group."""
        x, scales_NG = ctx.saved_tensors
        (gradient,) = gradients
        weight_NK = dequantize(replace(ctx.codes, scales=scales_NG))
        to_x = linear(gradient, weight_NK.T)
        to_weight_NK = linear(gradient.flatten(0, -2).T, x.flatten(0, -2).T)
        steps_NK = dequantize(replace(ctx.codes, scales=torch.ones_like(scales_NG)))
        blocks = into_groups(to_weight_NK.mul_(steps_NK), ctx.codes.scheme.group)
        return to_x, blocks.sum(-1), None


def product(x: Tensor, scales_NG: Tensor, codes: Codes) -> Tensor:
    """The product of `(..., K)` with rows of a weight, `(..., N)`; gradients reach the scales."""
    return cast(Tensor, _Product.apply(x, scales_NG, codes))  # type: ignore[no-untyped-call]


def _train(
    model: Exportable,
    trained: Sequence[_Rounded],
    rounded: Sequence[_Rounded],
    inputs: Inputs,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Change the scales of some weights, a step for every few texts."""
    texts = calls(model, inputs)
    taught = _predictions(model, texts)
    optimizer = torch.optim.Adam(
        [each.change for each in trained], lr=RATE, betas=BETAS, eps=EPSILON
    )
    generator, order = torch.Generator().manual_seed(0), list[int]()
    for _ in range(PASSES):
        order += torch.randperm(len(texts), generator=generator).tolist()
    steps = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    student = _student(model, {each.weight.name: each for each in rounded})
    for number, chosen in enumerate(steps):
        optimizer.param_groups[0]["lr"] = RATE * _pace(number, len(steps))
        optimizer.zero_grad()
        for place in chosen:
            with student:
                logits_SV = texts[place]()
            loss = divergence(logits_SV, taught[place]) / len(chosen)
            loss.backward()  # type: ignore[no-untyped-call]
            return_free_memory()
            if progress is not None:
                progress(BATCH * number + chosen.index(place) + 1, len(order))
        optimizer.step()


def _student(model: Exportable, rounded: Mapping[str, _Rounded]) -> LazyWeights:
    """The model with products and tables from codes."""
    places = places_of(model.weights, rounded)
    codes = {name: each.codes for name, each in rounded.items()}
    lazy = LazyWeights(model.module, rounded_weights(model.weights, codes))

    def ask(request: Request | Row) -> Tensor:
        place = places.get(request.name)
        if isinstance(request, Row):
            return lazy.answer(request)
        if place is None:
            return streamed_product(request, lazy.weights)
        scales = rounded[place.name].scales()[place.start : place.stop]
        rows = codes[place.name].rows(place.start, place.stop)
        y = product(request.entering, scales, rows)
        return y if request.bias is None else y + request.bias

    return lazy.asking(ask)


def _pace(step: int, steps: int) -> float:
    """The share of the rate that a step takes."""
    return min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps))


def _predictions(model: Exportable, texts: Sequence[Callable[[], Tensor]]) -> list[Predictions]:
    """What the trained model says of every text."""
    found: dict[int, Predictions] = {}
    for event in run(model.module, model.weights, texts):
        if isinstance(event, Result):
            logs_SV = event.value.float().log_softmax(-1)
            logs, ids = logs_SV.topk(min(KEPT, logs_SV.shape[-1]))
            found[event.index] = Predictions(ids, logs)
    return [found[place] for place in range(len(texts))]


def divergence(logits_SV: Tensor, taught: Predictions) -> Tensor:
    """The mean divergence from what the trained model says; the predictions not kept are one."""
    logs_SV = logits_SV.float().log_softmax(-1)
    kept_SP = logs_SV.gather(-1, taught.ids)
    among = (taught.logs.exp() * (taught.logs - kept_SP)).sum(-1)
    rest, ours = (_rest(logs) for logs in (taught.logs, kept_SP))
    return (among + rest * (rest.log() - ours.log())).mean()


def _rest(logs_SP: Tensor) -> Tensor:
    """The probability of what is not kept, `(S,)`; not 0, whose logarithm nothing can use."""
    return (1 - logs_SP.exp().sum(-1)).clamp(min=LEAST)


def _parts(weights: Weights, rounded: _Rounded) -> Iterator[Part]:
    """A weight and its codes, some rows at a time."""
    codes, start = rounded.tuned(), 0
    for rows in row_chunks(weights, rounded.weight.name):
        yield Part(rows=rows, codes=codes.rows(start, start + len(rows)))
        start += len(rows)
