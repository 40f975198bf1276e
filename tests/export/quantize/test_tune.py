from collections.abc import Iterator

import pytest
import torch
from tests.export import tiny_models
from tests.modeling import kinds
from torch import Tensor

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs, calls
from ortolan.export.quantize import guide, rtn, tune
from ortolan.export.quantize.blocks import Codes, Scheme, dequantize, joined
from ortolan.export.quantize.guide import is_affordable
from ortolan.export.quantize.rounded import rounded_weights
from ortolan.export.quantize.rounding import QuantizedWeight, round_rows
from ortolan.export.quantize.tune import Predictions, divergence, tuned
from ortolan.export.source import open_exportable
from ortolan.export.streamed import Result, run
from ortolan.modeling.config import LearnedPositions
from ortolan.modeling.models.model import TransformerModel
from ortolan.modeling.weights import Weights

SCHEME = Scheme(bits=4, group=32)

INPUTS = Inputs(ids=[torch.arange(start, start + 24) % 31 for start in range(8)])


def opened(module: TransformerModel) -> Exportable:
    return open_exportable(module, tokenizer=None, max_context=None)


def rounded(model: Exportable, scheme: Scheme = SCHEME) -> Iterator[QuantizedWeight]:
    for name, parameter in model.module.named_parameters():
        if parameter.ndim == 2:
            parts = round_rows(model.weights, name, scheme, "rtn")
            yield QuantizedWeight(name=name, scheme=scheme, method="gptq", parts=parts)


def codes_of(quantized: Iterator[QuantizedWeight]) -> dict[str, Codes]:
    return {each.name: joined([part.codes for part in each.parts]) for each in quantized}


def outputs(model: Exportable, weights: Weights | None = None) -> list[Tensor]:
    found = {}
    for event in run(model.module, weights or model.weights, calls(model, INPUTS)):
        if isinstance(event, Result):
            found[event.index] = event.value.log_softmax(-1)
    return [found[place] for place in range(len(INPUTS.ids))]


def distance(model: Exportable, codes: dict[str, Codes]) -> float:
    """The mean divergence of the rounded model from the trained one."""
    pairs = zip(outputs(model), outputs(model, rounded_weights(model.weights, codes)), strict=True)
    return sum(float((p.exp() * (p - q)).sum(-1).mean()) for p, q in pairs)


@pytest.fixture
def model() -> Exportable:
    return opened(tiny_models.decoder(tiny_models.llama()))


def test_tuned_scales_predict_what_the_trained_model_does(
    model: Exportable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "BATCH", 1)
    before = codes_of(rounded(model))

    after = codes_of(tuned(model, rounded(model), INPUTS))

    assert distance(model, after) < 0.9 * distance(model, before)
    for name, codes in after.items():
        assert torch.equal(codes.values, before[name].values)


def test_what_is_tuned_says_so_and_comes_out_the_same_again(model: Exportable) -> None:
    first, again = (list(tuned(model, rounded(model), INPUTS)) for _ in range(2))

    # As an embedding, a table would change what all else was fitted to.
    tables = {"embedding.weight"}
    assert {weight.name for weight in first if weight.method != "tuned"} == tables
    scales = codes_of(iter(again))
    for name, codes in codes_of(iter(first)).items():
        assert torch.equal(codes.scales, scales[name].scales)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("columns", [64, 80])
def test_gradients_are_those_of_the_dequantized_weight(symmetric: bool, columns: int) -> None:
    generator = torch.Generator().manual_seed(0)
    scheme = Scheme(bits=4, group=32, symmetric=symmetric)
    codes = rtn.quantize(torch.randn(6, columns, generator=generator), scheme)
    x = torch.randn(2, 5, columns, generator=generator, requires_grad=True)
    scales = codes.scales.clone().requires_grad_()
    towards = torch.randn(2, 5, 6, generator=generator)

    torch.autograd.backward(tune.product(x, scales, codes), towards)
    found = x.grad, scales.grad
    x.grad = scales.grad = None
    dense = dequantize(Codes(values=codes.values, scales=scales, zeros=codes.zeros, scheme=scheme))
    torch.autograd.backward(x @ dense.T, towards)

    for ours, theirs in zip(found, (x.grad, scales.grad), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_divergence_is_that_of_pytorch_where_every_prediction_is_kept() -> None:
    generator = torch.Generator().manual_seed(0)
    trained, ours = (torch.randn(7, 40, generator=generator) for _ in range(2))
    logs = trained.log_softmax(-1)
    expected = torch.nn.functional.kl_div(
        ours.log_softmax(-1), logs, log_target=True, reduction="batchmean"
    )

    all_ids = torch.arange(40).expand(7, 40)
    top, ids = logs.topk(12)

    torch.testing.assert_close(divergence(ours, Predictions(all_ids, logs)), expected)
    assert divergence(ours, Predictions(ids, top)) < expected  # the rest counts as one


def test_large_models_and_encoders_are_not_guided(
    model: Exportable, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [weight.name for weight in rounded(model)]
    encoder = opened(kinds.encoder(kinds.encoder_config(LearnedPositions())))

    assert is_affordable(model, 192, names)
    assert not is_affordable(encoder, 192, [name for name, _ in encoder.module.named_parameters()])
    monkeypatch.setattr(guide, "MOST_WORK", 1)
    assert not is_affordable(model, 192, names)
