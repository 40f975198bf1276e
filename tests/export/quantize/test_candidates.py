"""Codes in files, and their dequantized weights."""

from pathlib import Path

import pytest
import torch
from tests.export.memory_weights import MemoryWeights
from tests.export.quantize.weights import correlated_inputs, gaussian

from ortolan.export.derived import DerivedWeights, Recipe
from ortolan.export.quantize import gptq, rounding
from ortolan.export.quantize.blocks import dequantize
from ortolan.export.quantize.candidates import Candidates, fit_with_loss
from ortolan.export.quantize.rounding import QuantizedWeight, round_rows
from ortolan.export.scheme import Scheme
from ortolan.export.streamed import RoundsInputs

SCHEMES = [
    Scheme(bits=bits, group=32, symmetric=symmetric)
    for bits in (4, 8)
    for symmetric in (True, False)
]


WEIGHTS = DerivedWeights(
    MemoryWeights(
        q=gaussian(6, 40, seed=1),
        k=gaussian(4, 40, seed=2),
        turned=gaussian(40, 5, seed=3),
        experts=gaussian(18, 40, seed=4).view(3, 6, 40),
    ),
    {"q+k": Recipe(("q", "k")), "turned.T": Recipe(("turned",), transposed=True)},
)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("elements", [50, 1 << 20])
def test_codes_come_back_as_they_were(
    scheme: Scheme, elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounding, "CHUNK_ELEMENTS", elements)
    made, values = Candidates(tmp_path, WEIGHTS), {}
    for name in ("q+k", "turned.T", "experts"):
        parts = list(round_rows(WEIGHTS, name, scheme, "rtn"))
        values[name] = torch.cat([dequantize(part.codes) for part in parts])
        made.add(QuantizedWeight(name=name, scheme=scheme, method="rtn", parts=iter(parts)))
        again = made.weight(name, scheme)
        assert (again.name, again.scheme, again.method) == (name, scheme, "rtn")
        for part, other in zip(parts, again.parts, strict=True):
            assert torch.equal(part.rows, other.rows)
            assert torch.equal(part.codes.values, other.codes.values)
            assert torch.equal(dequantize(part.codes), dequantize(other.codes))
        error = sum(float((dequantize(p.codes) - p.rows).square().sum()) for p in parts)
        assert made.loss(name, scheme) == pytest.approx(error)

    stands_for = made.instead(dict.fromkeys(values, scheme))
    expected = {
        "q": values["q+k"][:6],
        "k": values["q+k"][6:],
        "turned": values["turned.T"].T,
        "experts": values["experts"].view(3, 6, 40),
    }
    assert stands_for.keys() == expected.keys()
    for name, value in expected.items():
        assert stands_for[name].shape(name) == value.shape
        assert torch.equal(stands_for[name].rows(name, 0, len(value)), value)
        assert torch.equal(stands_for[name].rows(name, 1, 3), value[1:3])


def test_loss_is_the_error_of_what_the_weight_computes() -> None:
    weight, x = gaussian(16, 64), correlated_inputs(400, 64)
    factor = gptq.factorize(x.T @ x, damping=1e-5)
    for scheme in SCHEMES:
        part = fit_with_loss(weight, factor, scheme)
        error = float((x @ (weight - dequantize(part.codes)).T).square().sum())
        assert part.loss == pytest.approx(error, rel=0.01)


def test_kernels_round_what_enters_in_the_groups_of_the_weight(tmp_path: Path) -> None:
    made, scheme = Candidates(tmp_path, WEIGHTS), Scheme(bits=4, group=32)
    parts = round_rows(WEIGHTS, "q+k", scheme, "rtn")
    made.add(QuantizedWeight(name="q+k", scheme=scheme, method="rtn", parts=parts))
    plain, kernel = (made.instead({"q+k": scheme}, as_kernels=each)["q"] for each in (False, True))
    assert not isinstance(plain, RoundsInputs)
    assert isinstance(kernel, RoundsInputs)
    entering = torch.tensor([127.0] + [0.4] * 31 + [12.7] + [0.14] * 6 + [0.16]).view(1, 1, 40)
    expected = torch.tensor([127.0] + [0.0] * 31 + [12.7] + [0.1] * 6 + [0.2]).view(1, 1, 40)
    torch.testing.assert_close(kernel.rounded(entering), expected)
    assert torch.equal(kernel.rounded(torch.zeros(2, 40)), torch.zeros(2, 40))
    assert torch.equal(kernel.rows("q", 0, 6), plain.rows("q", 0, 6))
