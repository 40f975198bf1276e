"""The quick proof finds damage to single weights."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.export import tiny_models

import ortolan
from ortolan.export.options import ExportOptions, Int4, Int8
from ortolan.runtime import open_bundle
from ortolan.runtime.verification.certificate_files import read_certificate
from ortolan.runtime.verification.weights import check_weights

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.parametrize(
    ("precision", "options"),
    [
        ("fp32", {}),
        ("fp16", {}),
        (Int8(), {}),
        (Int4(method="rtn", asymmetric=True), {}),
        (Int4(method="rtn"), {"attention": "portable"}),
        (Int4(method="rtn"), {"graphs": "split", "prefill_precision": "int8"}),
    ],
    ids=["fp32", "fp16", "int8", "int4", "portable", "split"],
)
def test_every_kind_of_weight_is_proved_and_single_damages_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Any, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    from damages import damages

    module = tiny_models.decoder(tiny_models.llama())
    given = ExportOptions(allow_poor=True, **options)
    bundle = ortolan.export(module, tmp_path / "bundle", precision=precision, options=given)
    expected = read_certificate(bundle).weights
    sound = check_weights(bundle, expected, threads=1)
    assert sound.wrong == ()
    assert 30 * sound.largest_error < sound.bound
    if precision == "fp16":
        return  # damage to one value is below the rounding of such kernels
    for kind, name in damages(bundle.path, count=4, seed=1):
        report = check_weights(open_bundle(bundle.path), expected, threads=1)
        (wrong,) = {each.rpartition(".")[0] for each in report.wrong}
        assert name.startswith(wrong), kind
