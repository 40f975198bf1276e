"""Distances of models with rounded weights, against PyTorch."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.export import tiny_models
from torch import Tensor

from ortolan.export.exportable import Exportable
from ortolan.export.inputs.tensors import Inputs
from ortolan.export.quantize import effects
from ortolan.export.quantize.blocks import dequantize
from ortolan.export.quantize.candidates import Candidates
from ortolan.export.quantize.effects import Reference, distances, some_of
from ortolan.export.quantize.rounding import QuantizedWeight, round_rows
from ortolan.export.scheme import Scheme
from ortolan.export.source import open_exportable
from ortolan.modeling import DecoderModel

TEXTS = [torch.arange(start, start + 20) for start in (0, 7, 31)]

SCHEME = Scheme(bits=4, group=32)


def opened() -> tuple[DecoderModel, Exportable]:
    torch.manual_seed(0)
    module = DecoderModel(tiny_models.gpt2()).eval()  # its head is its embedding
    return module, open_exportable(module, tokenizer=None, max_context=None)


def rounded(
    model: Exportable, names: list[str], folder: Path
) -> tuple[Candidates, dict[str, Tensor]]:
    """Weights rounded to nearest, and their dequantized values."""
    made, values = Candidates(folder, model.weights), {}
    for name in names:
        parts = list(round_rows(model.weights, name, SCHEME, "rtn"))
        values[name] = torch.cat([dequantize(part.codes) for part in parts])
        made.add(QuantizedWeight(name=name, scheme=SCHEME, method="rtn", parts=iter(parts)))
    return made, values


def divergence(module: DecoderModel, values: Mapping[str, Tensor]) -> float:
    """Mean KL divergence of the module with other values for some weights."""
    other = DecoderModel(module.config).eval()
    other.load_state_dict({**module.state_dict(), **values}, strict=False)
    with torch.inference_mode():
        outputs = [(module(ids[None])[0], other(ids[None])[0]) for ids in TEXTS]
    each = [
        F.kl_div(got.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="none")
        for wanted, got in outputs
    ]
    return float(torch.cat(each).sum(-1).mean())


@pytest.mark.parametrize("at_once", [1, 10_000])
def test_each_weight_has_the_effect_that_pytorch_sees(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "TOKENS_AT_ONCE", at_once)
    module, model = opened()
    names = [name for name, each in module.named_parameters() if each.ndim == 2]
    (tmp_path / "codes").mkdir()
    (tmp_path / "reference").mkdir()
    made, values = rounded(model, names, tmp_path / "codes")
    variants = [[name] for name in names] + [names]
    reference = Reference(model, Inputs(ids=TEXTS), tmp_path / "reference")
    told: list[tuple[int, int]] = []
    found = reference.distances(
        [made.instead(dict.fromkeys(each, SCHEME)) for each in variants],
        lambda step, done, total, what="": told.append((done, total)),
    )
    expected = [divergence(module, {name: values[name] for name in each}) for each in variants]
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-8)
    assert min(expected) > 1e-7
    assert told[-1] == (len(variants), len(variants))


def test_nothing_rounded_has_no_effect(tmp_path: Path) -> None:
    _, model = opened()
    assert Reference(model, Inputs(ids=TEXTS), tmp_path).distances([{}]) == [0.0]


def test_vectors_are_compared_by_their_cosines() -> None:
    first, second = torch.eye(3), torch.tensor([[2.0, 0, 0], [0, -1, 0], [1, 0, 0]])
    assert distances(first, second, "states").tolist() == [0, 2, 1]
    assert distances(first[0], second[1], "embedding").tolist() == [1]


def test_labels_are_compared_as_one_distribution() -> None:
    got = distances(torch.tensor([0.0, 1.0]), torch.tensor([5.0, 6.0]), "labels")
    assert got.tolist() == pytest.approx([0.0], abs=1e-6)


def test_effects_are_measured_on_the_first_inputs() -> None:
    _, model = opened()
    for tokens, count in ((1, 1), (30, 1), (31, 2), (1000, 3)):
        assert len(some_of(model, Inputs(ids=TEXTS), tokens).ids) == count
