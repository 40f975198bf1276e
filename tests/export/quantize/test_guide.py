"""Importance of tokens, against plain gradients of PyTorch."""

from collections.abc import Iterable

import pytest
import torch
import torch.nn.functional as F
from tests.export import tiny_models
from tests.export.models_of_kinds import opened
from tests.export.own_module import Unusual, unusual
from torch import Tensor, nn

from ortolan.export.errors import ExportError
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.quantize.blocks import Codes
from ortolan.export.quantize.calibrate import ALL_EQUAL, calibrated_weights
from ortolan.export.quantize.guide import Importance, importance
from ortolan.export.scheme import Scheme
from ortolan.modeling.state import State

SCHEME = Scheme(bits=4, group=32)

TEXTS = [torch.arange(start, start + 24) % 31 for start in (0, 11, 29)]


def counted_by_hooks(module: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """Importance of the tokens of a text, from an ordinary backward pass."""
    entering: dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}

    def note(name: str, x: Tensor, y: Tensor) -> None:
        entering[name] = x
        y.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: gradients.update({name: gradient[0]})
        )

    hooks = [
        layer.register_forward_hook(lambda _, given, y, name=name: note(name, given[0], y))
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    logits_SV = module(ids[None])[0]
    F.cross_entropy(logits_SV[:-1], ids[1:], reduction="sum").backward()  # type: ignore[no-untyped-call]
    for hook in hooks:
        hook.remove()
    own = {name: gradient.square().mean(-1) for name, gradient in gradients.items()}
    return {
        f"{name}.weight": torch.stack([own[other] for other in own if entering[other] is x]).sum(0)
        for name, x in entering.items()
    }


def test_tokens_count_by_the_gradients_of_all_products_that_read_them() -> None:
    module = tiny_models.decoder(tiny_models.llama())
    found = importance(opened(module), Inputs(ids=TEXTS))

    expected = [counted_by_hooks(module, ids) for ids in TEXTS]

    # In the head, all tokens count alike.
    assert found.keys() == expected[0].keys() - {"head.weight"}
    up, gate = (f"blocks.0.feed_forward.{name}.weight" for name in ("up", "gate"))
    assert torch.equal(found[up][0], found[gate][0])
    for name, texts in found.items():
        for ours, theirs in zip(texts, (text[name] for text in expected), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-9)


def codes(texts: Iterable[Tensor], known: Importance = ALL_EQUAL) -> dict[str, Codes]:
    model = opened(tiny_models.decoder(tiny_models.llama()))
    names = [
        n for n, p in model.module.named_parameters() if n.startswith("blocks.") and p.dim() == 2
    ]
    plan, inputs = dict.fromkeys(names, SCHEME), Inputs(ids=list(texts))
    found = calibrated_weights(model, plan, inputs, importance=known)
    return {weight.name: part.codes for weight in found for part in weight.parts}


def test_a_text_that_counts_double_is_a_text_given_twice() -> None:
    once, other, _ = TEXTS
    plain = codes([once, other])
    double = {name: [torch.full((24,), 2.0), torch.ones(24)] for name in plain}

    def shared(found: dict[str, Codes], expected: dict[str, Codes]) -> float:
        same = [(found[n].values == expected[n].values).flatten() for n in expected]
        return float(torch.cat(same).float().mean())

    twice = codes([once, once, other])
    assert shared(codes([once, other], double), twice) > 0.999
    assert shared(plain, twice) < 0.98


class Undifferentiable(Unusual):
    """A function without gradients."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, ids: Tensor, state: State) -> Tensor:
        with torch.set_grad_enabled(self.how != "no_grad"):
            logits = super().forward(ids, state).exp()
            if self.how == "in place":
                logits += 1
            return logits


@pytest.mark.parametrize(
    ("how", "reason"),
    [("no_grad", "does not require grad"), ("in place", "modified by an inplace operation")],
)
def test_a_model_without_gradients_is_refused(how: str, reason: str) -> None:
    message = rf"{reason}.*--effort quick"
    with pytest.raises(ExportError, match=message):
        importance(opened(Undifferentiable(how)), Inputs(ids=TEXTS))


def test_a_module_of_ones_own_is_guided() -> None:
    found = importance(opened(unusual()), Inputs(ids=TEXTS))
    assert {"layers.0.q.weight", "layers.2.mlp.3.weight"} <= found.keys()
    assert all(bool((counts > 0).any()) for texts in found.values() for counts in texts)
