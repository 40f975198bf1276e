"""How much each token's error in a product costs, by the gradients of what the model predicts.

GPTQ keeps the outputs of a product, those of every token alike. What the model predicts depends on
some of them far more than on others: to second order, an error in the output of a product costs its
square times that of the gradient of the log-likelihood there (the diagonal of Fisher's
information). So each token counts in the sum over the inputs by the mean square of the gradients
that come back to the products which read it.

Source: Kim et al., "GuidedQuant", 2025, https://arxiv.org/abs/2505.07004; here with one weight for
all outputs that read the same inputs, which share a Hessian.

Shape letters: S tokens of a text, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ortolan.export.errors import ExportError
from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs, calls
from ortolan.export.products import linear
from ortolan.export.progress import Progress, silent
from ortolan.export.streamed import READ_BYTES, LazyWeights, Request, Row, product
from ortolan.modeling.weights import Weights
from ortolan.runtime.machine.memory import return_free_memory

MOST_WORK = 4 << 40
"""Tokens of calibration times weights up to which gradients take minutes (docs/adr/0020)."""

Importance = Mapping[str, Sequence[Tensor]]
"""By the name of a product's weight: what each token counts of each text, `(S,)`."""


def is_affordable(model: Exportable, tokens: int, names: Iterable[str]) -> bool:
    """Whether gradients are a matter of minutes: the model gives logits, and is small enough.

    Args:
        model: the model.
        tokens: of its decoder, to calibrate on.
        names: of weights to calibrate.
    """
    weights = sum(math.prod(model.weights.shape(name)) for name in names)
    # token by token, every product is as many as there are tokens
    is_quick = not model.takes_one and tokens * weights <= MOST_WORK
    return model.sides.has_decoder and tokens * weights > 0 and is_quick


def importance(model: Exportable, inputs: Inputs, progress: Progress = silent) -> Importance:
    """What each token counts in each product, of every text.

    Weights are read as they are used, forwards and backwards; in memory is what PyTorch keeps of
    one text for its gradients.

    Args:
        model: a decoder, as it was trained.
        inputs: texts, whose tokens it predicts.
        progress: told after every text.

    Raises:
        ExportError: PyTorch has no gradients of the model.
    """
    found: dict[str, list[Tensor]] = {}
    texts = calls(model, inputs)
    lazy = LazyWeights(model.module, model.weights)
    for number, (text, ids) in enumerate(zip(texts, inputs.ids, strict=True), 1):
        for name, counts_S in _of_text(lazy, text, ids).items():
            found.setdefault(name, []).append(counts_S)
        return_free_memory()
        progress("guide", number, len(texts))
    # A product that some texts never came to counts every token alike, and so does the head: where
    # the trained model is sure, it has no gradients, and the rounded one would not be.
    return {
        name: each
        for name, each in found.items()
        if len(each) == len(texts) and model.weights.shape(name)[0] != model.vocab_size
    }


class _Entering:
    """A tensor that enters some products.

    Attributes:
        x: the tensor, `(..., K)`, kept so that no other takes its identity.
        counts_S: what its tokens count in all of them.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.counts_S = torch.zeros(x.shape[:-1].numel())

    def add(self, gradient: Tensor) -> None:
        """Add the mean squares of the gradients of a product's outputs."""
        self.counts_S += gradient.flatten(0, -2).square().mean(-1)


def _of_text(lazy: LazyWeights, text: Callable[[], Tensor], ids: Tensor) -> Mapping[str, Tensor]:
    """By the weight of each product, what tokens count; of one that runs again, the first time."""
    seen: dict[int, _Entering] = {}
    named: dict[str, _Entering] = {}
    anchor = torch.ones((), requires_grad=True)

    def ask(request: Request | Row) -> Tensor:
        if isinstance(request, Row):
            return lazy.answer(request)
        x = request.entering
        entering = seen.setdefault(id(x), _Entering(x))
        named.setdefault(request.name, entering)
        return streamed_product(request, lazy.weights, anchor=anchor, note=entering.add)

    try:
        with lazy.asking(ask):
            logits_SV = text()
        F.cross_entropy(logits_SV[:-1].float(), ids[1:], reduction="sum").backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:  # the model has run before, without gradients
        reason = str(error).partition("\n")[0]
        raise ExportError(
            f"guide: expected a model that PyTorch can differentiate, got: {reason} "
            "Choose --method hqq or rtn, which need no gradients."
        ) from error
    return {name: entering.counts_S for name, entering in named.items()}


def streamed_product(
    request: Request,
    weights: Weights,
    *,
    anchor: Tensor | None = None,
    note: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """A product that reads its weight forwards and backwards, and keeps it in neither.

    Args:
        request: the product.
        weights: where to read.
        anchor: a number with a gradient, by which those of the output come to products of inputs
            that have none.
        note: told the gradients of the output.
    """
    y = _Streamed.apply(request.entering, anchor, request, weights, note)  # type: ignore[no-untyped-call]
    return cast(Tensor, y)


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor | None,
        request: Request,
        weights: Weights,
        note: Callable[[Tensor], None] | None,
    ) -> Tensor:
        ctx.request, ctx.weights, ctx.note = request, weights, note
        return product(weights, request, None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        (gradient,) = gradients
        if ctx.note is not None:
            ctx.note(gradient)
        to_x = _back(gradient, ctx.weights, ctx.request) if ctx.needs_input_grad[0] else None
        return to_x, None, None, None, None


def _back(gradient: Tensor, weights: Weights, request: Request) -> Tensor:
    """Gradients of outputs times the weight, some rows of it at a time."""
    name = request.name
    rows, columns = weights.shape(name)
    step = max(1, READ_BYTES // (4 * columns))
    starts = range(0, rows, step)
    parts = (
        (start, weights.rows(name, start, min(start + step, rows)).float()) for start in starts
    )
    if request.is_transposed:
        return torch.cat([linear(gradient, part) for _, part in parts], dim=-1)
    to_x = gradient.new_zeros(*gradient.shape[:-1], columns)
    for start, part in parts:
        to_x += linear(gradient[..., start : start + step], part.T)
    return to_x
