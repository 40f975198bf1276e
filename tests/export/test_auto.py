"""Bits chosen by an export, within a divergence or a size."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.export import tiny_models

import ortolan
from ortolan.export.errors import OptionError, ParityError
from ortolan.export.options import ExportOptions
from ortolan.export.quantize import tune
from ortolan.modeling import DecoderModel
from ortolan.runtime import Bundle
from ortolan.runtime.verification.certificate_files import read_certificate

LARGER = 3.0
"""Factor of random weights, so that bits matter to the logits."""


def model() -> DecoderModel:
    torch.manual_seed(0)
    module = DecoderModel(tiny_models.gpt2()).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.mul_(LARGER)
    return module


def export(out: Path, **bound: Any) -> Bundle:
    options = ExportOptions(allow_poor=True)
    return ortolan.export(model(), out, precision=ortolan.Auto(**bound), options=options)


@pytest.mark.slow
def test_a_divergence_is_kept_in_fewer_bytes_than_8_bits_take(tmp_path: Path) -> None:
    bundle = export(tmp_path / "out", max_kl=0.02)
    measured = read_certificate(bundle).measured
    assert measured is not None
    assert measured.mean_kl is not None
    assert 0.001 < measured.mean_kl <= 0.02  # all in 8 bits: 0.001, in 4 bits: 0.1
    assert {tensor.bits for tensor in bundle.manifest.quantized} == {4, 8}
    assert bundle.manifest.precision == "int4"
    assert sorted(path.name for path in bundle.path.iterdir()) == sorted(
        ["manifest.json", *(file.name for file in bundle.manifest.files)]
    )


@pytest.mark.slow
def test_a_divergence_covers_a_prefill_of_integers(tmp_path: Path) -> None:
    options = ExportOptions(allow_poor=True, graphs="split", prefill_precision="int8")
    precision = ortolan.Auto(max_kl=0.3)
    bundle = ortolan.export(model(), tmp_path / "out", precision=precision, options=options)
    measured = read_certificate(bundle).measured
    assert measured is not None
    assert measured.mean_kl is not None
    assert measured.mean_kl <= 0.3
    assert bundle.manifest.prefill_precision == "int8"
    with pytest.raises(ParityError, match="--prefill-precision float"):
        ortolan.export(
            model(), tmp_path / "near", precision=ortolan.Auto(max_kl=0.0019), options=options
        )


@pytest.mark.slow
@pytest.mark.parametrize(("size", "expected"), [(325_000, {4, 8}), (400_000, {8})])
def test_a_size_is_kept(size: int, expected: set[int], tmp_path: Path) -> None:
    bundle = export(tmp_path / "out", target_size=size)
    (name,) = bundle.manifest.weights
    assert bundle.file(name).stat().st_size <= size
    assert {tensor.bits for tensor in bundle.manifest.quantized} == expected
    assert bundle.manifest.precision == ("int4" if 4 in expected else "int8")


@pytest.mark.slow
def test_the_best_effort_trains_the_scales_of_what_it_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "TOKENS", 32)
    bundle = export(tmp_path / "out", target_size=325_000, effort="best", calibration_sequences=8)
    methods = {(tensor.bits, tensor.method) for tensor in bundle.manifest.quantized}
    assert methods == {(4, "tuned"), (8, "gptq")}
    (name,) = bundle.manifest.weights
    assert bundle.file(name).stat().st_size <= 325_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bound", "error", "message"),
    [
        ({"max_kl": 1e-9}, ParityError, "1e-09 .* 8 bits"),
        (
            {"target_size": 1000},
            OptionError,
            r"target_size .* [23]\d\d,\d+ bytes .* 1,000",
        ),
    ],
)
def test_a_bound_that_nothing_keeps_leaves_nothing(
    bound: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as raised:
        export(tmp_path / "out", **bound)
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == []
