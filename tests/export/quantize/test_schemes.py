"""Which weights keep 8 bits without calibration."""

from collections.abc import Callable, Mapping

import pytest
from tests.cases.modules import mixture
from tests.export import tiny_models
from tests.export.models_of_kinds import encoder_config, opened, seq2seq_config
from tests.modeling import kinds
from torch import nn

from ortolan.export.graphs import trace
from ortolan.export.options import Int4, Precision
from ortolan.export.progress import silent
from ortolan.export.quantize import schemes
from ortolan.export.quantize.schemes import assign_schemes
from ortolan.export.scheme import Scheme
from ortolan.export.settings import resolve

MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "llama": lambda: tiny_models.decoder(tiny_models.llama(layers=1)),
    "gpt2": lambda: tiny_models.decoder(tiny_models.gpt2()),
    "encoder": lambda: kinds.encoder(encoder_config()),
    "encoder-decoder": lambda: kinds.seq2seq(seq2seq_config()),
    "mixture": mixture,
}

QUICK = Int4(effort="quick")


def schemes_of(module: nn.Module, precision: Precision) -> dict[str, Scheme]:
    model = opened(module)
    plan = resolve(model.kind, precision=precision)
    assert plan.quantization is not None
    graphs = trace(model, plan, silent).values()
    return assign_schemes(graphs, plan.quantization, model.weights)


@pytest.mark.parametrize("name", MODELS)
def test_values_and_what_follows_an_activation_keep_8_bits(name: str) -> None:
    found = schemes_of(MODELS[name](), QUICK)
    for weight, scheme in found.items():
        own = weight.split(".blocks.")[-1]
        is_sensitive = any(part in own for part in ("v.", "+v", "down", "experts"))
        assert (scheme.bits == 8) == (is_sensitive or not schemes.is_block(weight)), weight
        assert scheme.symmetric == (scheme.bits == 8)
    assert 4 in {scheme.bits for scheme in found.values()}


@pytest.mark.parametrize("precision", [Int4(), Int4(method="rtn"), Int4(effort="best")])
def test_other_efforts_and_methods_keep_none(precision: Int4) -> None:
    found = schemes_of(MODELS["llama"](), precision)
    assert {scheme.bits for name, scheme in found.items() if schemes.is_block(name)} == {4}


def test_wide_models_keep_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemes, "NARROW", 16)
    found = schemes_of(MODELS["llama"](), QUICK)
    assert {scheme.bits for name, scheme in found.items() if schemes.is_block(name)} == {4}
