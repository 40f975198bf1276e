"""Importance of each token in each product, from the gradients of the predictions.

Plain GPTQ preserves the outputs of a product equally for all tokens, but the predictions depend on
some far more than on others. To second order, an error in an output costs its square times the
squared gradient of the log-likelihood there (the diagonal of the Fisher information). So a token's
weight in the Hessian is the mean squared gradient of the outputs of all products that read it:

    H = sum over tokens s of  c_s x_s x_s^T,    c_s = sum over products of mean_n (dL/dy_sn)^2

Source: Kim et al., "GuidedQuant", 2025, https://arxiv.org/abs/2505.07004, here with one weight for
all outputs that read the same inputs, since they share a Hessian.

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
"""Calibration tokens times weights up to which gradients take minutes (docs/adr/0020)."""

Importance = Mapping[str, Sequence[Tensor]]
"""Importance `(S,)` of the tokens of each text, by the name of a product's weight."""


def is_affordable(model: Exportable, tokens: int, names: Iterable[str]) -> bool:
    """Whether gradients take minutes: the model has a decoder and is small enough."""
    weights = sum(math.prod(model.weights.shape(name)) for name in names)
    # A model that reads tokens one by one runs every product once per token.
    is_quick = not model.takes_one and tokens * weights <= MOST_WORK
    return model.sides.has_decoder and tokens * weights > 0 and is_quick


def importance(model: Exportable, inputs: Inputs, progress: Progress = silent) -> Importance:
    """The importance of every token of every text in each product.

    Weights are read while they are used, forward and backward. Memory holds the activations of one
    text.
    """
    counts: dict[str, list[Tensor]] = {}
    texts = calls(model, inputs)
    lazy = LazyWeights(model.module, model.weights)
    for number, (text, ids) in enumerate(zip(texts, inputs.ids, strict=True), 1):
        for name, counts_S in _of_text(lazy, text, ids).items():
            counts.setdefault(name, []).append(counts_S)
        return_free_memory()
        progress("guide", number, len(texts))
    # Left out, so that all tokens count alike: products that some texts never reached, and the
    # head, which has no gradients where the trained model is certain, but must stay certain there.
    return {
        name: of_texts
        for name, of_texts in counts.items()
        if len(of_texts) == len(texts) and model.weights.shape(name)[0] != model.vocab_size
    }


class _Entering:
    """A tensor that enters products.

    Attributes:
        x: the tensor, `(..., K)`; holding it keeps its `id` unique.
        counts_S: importance of its tokens, summed over the products.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.counts_S = torch.zeros(x.shape[:-1].numel())

    def add(self, gradient: Tensor) -> None:
        """Add the mean squares of the gradients of a product's outputs."""
        self.counts_S += gradient.flatten(0, -2).square().mean(-1)


def _of_text(lazy: LazyWeights, text: Callable[[], Tensor], ids: Tensor) -> Mapping[str, Tensor]:
    """Importance of the tokens by product; a product that runs twice counts the first time."""
    seen: dict[int, _Entering] = {}
    named: dict[str, _Entering] = {}
    anchor = torch.ones((), requires_grad=True)

    def ask(request: Request | Row) -> Tensor:
        if isinstance(request, Row):
            return lazy.answer(request)
        x = request.entering
        entering = seen.setdefault(id(x), _Entering(x))
        named.setdefault(request.name, entering)
        y = _Streamed.apply(x, anchor, request, lazy.weights, entering.add)  # type: ignore[no-untyped-call]
        return cast(Tensor, y)

    try:
        with lazy.asking(ask):
            logits_SV = text()
        F.cross_entropy(logits_SV[:-1].float(), ids[1:], reduction="sum").backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:  # the model runs without gradients, so they are the cause
        reason = str(error).partition("\n")[0]
        raise ExportError(
            f"PyTorch cannot differentiate this model: {reason} Choose --effort quick, which needs "
            "no gradients."
        ) from error
    return {name: entering.counts_S for name, entering in named.items()}


class _Streamed(torch.autograd.Function):
    """A product that reads its weight forward and backward, without keeping it.

    `anchor` requires a gradient, so that the output does even if `x` does not. `note` is called
    with the gradients of the output.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        request: Request,
        weights: Weights,
        note: Callable[[Tensor], None],
    ) -> Tensor:
        ctx.request, ctx.weights, ctx.note = request, weights, note
        return product(weights, request, None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        (gradient,) = gradients
        ctx.note(gradient)
        to_x = _back(gradient, ctx.weights, ctx.request) if ctx.needs_input_grad[0] else None
        return to_x, None, None, None, None


def _back(gradient: Tensor, weights: Weights, request: Request) -> Tensor:
    """Gradients of outputs times the weight, a few of its rows at a time."""
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
