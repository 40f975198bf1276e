"""Weights calibrated on the inputs of a model."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from tests.export import tiny_models
from tests.export.own_module import unusual
from tests.modeling import kinds
from torch import Tensor

from ortolan.export.derived import DerivedWeights, Recipe
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.quantize import gptq
from ortolan.export.quantize.blocks import Codes
from ortolan.export.quantize.calibrate import calibrated_weights
from ortolan.export.quantize.refine import refine
from ortolan.export.scheme import Scheme
from ortolan.export.source import open_exportable
from ortolan.modeling.config import (
    ClassifierHead,
    EmbeddingHead,
    HeadLayer,
    LanguageModelHead,
    LearnedPositions,
    NormConfig,
    RelativeBiasPositions,
    SinusoidalPositions,
)
from ortolan.modeling.layers.linear import PackedLinear
from ortolan.modeling.models.model import TransformerModel

SCHEME = Scheme(bits=4, group=32)

TEXTS = [torch.arange(start, start + 12) for start in (0, 7, 15)]
TARGETS = [torch.arange(start, start + 9) for start in (3, 11, 20)]

HEADS = {
    "classifier": ClassifierHead(
        labels=("a", "b", "c"), pooling="mean", layer=HeadLayer(activation="tanh")
    ),
    "language model": LanguageModelHead(
        tied=True,
        bias=True,
        layer=HeadLayer(activation="gelu", norm=NormConfig(kind="layer", eps=1e-5)),
    ),
    "embedding": EmbeddingHead(pooling=("first",)),
}


def products(module: TransformerModel) -> list[str]:
    """The weights of all products, in the order of the module."""
    return [
        f"{name}.weight"
        for name, layer in module.named_modules()
        if isinstance(layer, torch.nn.Linear | PackedLinear)
    ]


class Found(NamedTuple):
    method: str
    codes: Codes


def calibrated(module: TransformerModel, inputs: Inputs, names: Iterable[str]) -> dict[str, Found]:
    source = open_exportable(module)
    plan = dict.fromkeys(names, (SCHEME,))
    found: dict[str, Found] = {}
    for weight in calibrated_weights(source, plan, inputs):
        assert weight.name not in found
        (part,) = weight.parts  # small weights come in one
        found[weight.name] = Found(weight.method, part.codes)
    return found


def run(module: TransformerModel, inputs: Inputs) -> None:
    with torch.no_grad():
        for place in range(max(len(inputs.sources), len(inputs.ids))):
            module(*(each[place][None] for each in (inputs.sources, inputs.ids) if each))


def assert_is_calibrated(
    module: TransformerModel, inputs: Inputs, name: str, found: dict[str, Found]
) -> None:
    """Compare codes with refined GPTQ on the activations of the model."""
    weight = module.get_parameter(name).detach()
    seen: list[Tensor] = []
    layer = module.get_submodule(name.removesuffix(".weight"))
    layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].flatten(0, -2)))
    run(module, inputs)
    x_SK = torch.cat(seen)
    factor = gptq.factorize(x_SK.T @ x_SK)
    wanted = refine(weight, gptq.round_columns(weight, factor, SCHEME), factor)
    assert (found[name].codes.values == wanted.values).float().mean() > 0.99


def test_a_product_is_calibrated_on_what_the_model_computes_before_it() -> None:
    module = tiny_models.decoder(tiny_models.llama())
    names = [name for name in products(module) if name.startswith("blocks.")]
    inputs = Inputs(ids=[torch.arange(start, start + 60) for start in (0, 15, 30)])
    found = calibrated(module, inputs, names)
    for name in names:
        assert_is_calibrated(module, inputs, name, found)


@pytest.mark.parametrize("head", HEADS)
def test_an_encoder_is_calibrated_up_to_its_head(head: str) -> None:
    module = kinds.encoder(kinds.encoder_config(SinusoidalPositions(), head=HEADS[head]))
    inputs = Inputs(sources=TEXTS)
    found = calibrated(module, inputs, products(module))
    assert {weight.method for weight in found.values()} == {"gptq"}
    name = {
        "classifier": "head.dense.weight",
        "language model": "head.transform.weight",
        "embedding": "blocks.1.feed_forward.up.weight",
    }[head]
    assert_is_calibrated(module, inputs, name, found)


@pytest.mark.parametrize(
    "name",
    [
        "encoder.blocks.1.attention.qkv",
        "decoder.blocks.0.cross_attention.q",
        "decoder.blocks.1.cross_attention.kv",
        "decoder.blocks.1.feed_forward.down",
    ],
)
def test_a_decoder_is_calibrated_on_what_its_encoder_gives(name: str) -> None:
    positions = RelativeBiasPositions(buckets=8, max_distance=11)
    module = kinds.seq2seq(kinds.seq2seq_config(positions))
    inputs = Inputs(sources=TEXTS, ids=TARGETS)
    found = calibrated(module, inputs, products(module))
    assert_is_calibrated(module, inputs, f"{name}.weight", found)


def test_weights_that_are_stored_as_rows_of_one_are_found_one_by_one() -> None:
    module = unusual()
    model = open_exportable(module)
    inputs = Inputs(ids=TEXTS)
    parts = ("layers.0.q.weight", "layers.0.kv.weight")
    apart = {
        weight.name: list(weight.parts)
        for weight in calibrated_weights(model, dict.fromkeys(parts, (SCHEME,)), inputs)
    }
    joined = DerivedWeights(model.weights, {"joined": Recipe(parts)})
    (weight,) = calibrated_weights(replace(model, weights=joined), {"joined": (SCHEME,)}, inputs)
    both = list(weight.parts)
    assert (weight.name, weight.method) == ("joined", "gptq")
    for name, part in zip(parts, both, strict=True):
        assert torch.equal(part.rows, module.get_parameter(name))
        assert torch.equal(part.codes.values, apart[name][0].codes.values)


def test_a_table_that_is_the_head_as_well_is_calibrated_once() -> None:
    module = kinds.seq2seq(kinds.seq2seq_config(LearnedPositions()))
    found = calibrated(module, Inputs(sources=TEXTS, ids=TARGETS), ["shared.weight"])
    assert found["shared.weight"].method == "gptq"
    apart = kinds.encoder(kinds.encoder_config(LearnedPositions()))
    found = calibrated(apart, Inputs(sources=TEXTS), ["embedding.weight"])
    assert found["embedding.weight"].method == "rtn"
