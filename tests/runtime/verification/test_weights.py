from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.runtime.damaged_bundles import damage
from tests.runtime.tiny_decoder import write_bundle

from ortolan.runtime import open_bundle
from ortolan.runtime.errors import CertificateError
from ortolan.runtime.verification.certificate_files import read_certificate
from ortolan.runtime.verification.replay import verify
from ortolan.runtime.verification.weight_sums import block_sums, weight_inputs
from ortolan.runtime.verification.weights import check_weights


@pytest.mark.parametrize("width", [1, 16, 100, 576])
def test_vectors_are_exact_in_eight_bits_whatever_the_groups(width: int) -> None:
    steps = weight_inputs(width) * 128
    assert (steps == steps.round()).all()
    for group in (16, 32, 64, 128, 256):
        for start in range(0, width, group):
            assert (np.abs(steps[:, start : start + group]).max(axis=1) == 127).all()


def test_vectors_for_a_range_span_255_steps() -> None:
    steps = weight_inputs(64, whole_range=True) * 128
    assert (steps.max(axis=1), steps.min(axis=1)) == (pytest.approx(128), pytest.approx(-127))


def test_vectors_and_signs_never_change() -> None:
    """They are part of the file format."""
    assert (weight_inputs(20)[0, :6] * 128).tolist() == [-28.0, 91.0, -112.0, 96.0, 29.0, 91.0]
    assert block_sums(np.arange(40.0)[None]).tolist() == [[30.0, 68.0]]


@pytest.mark.parametrize("name", ["embedding", "1.q", "head", ""])
def test_a_damaged_tensor_is_named(tmp_path: Path, name: str) -> None:
    path = write_bundle(tmp_path / "bundle").path
    if not name:
        name = next(iter(read_certificate(open_bundle(path)).weights.stored))

    def change(values: NDArray[np.float32]) -> None:
        values.reshape(-1)[5:9] *= 1.1

    damage(path, name, change)
    report = verify(path, isolate=False)
    assert report.verdict == "FAIL"
    assert report.weights is not None
    assert report.weights.wrong == (name,)
    assert name in report.device_summary


def test_a_certificate_without_one_of_the_weights_is_refused(tmp_path: Path) -> None:
    bundle = open_bundle(write_bundle(tmp_path / "bundle").path)
    expected = read_certificate(bundle).weights
    fewer = {name: outputs for name, outputs in expected.outputs.items() if name != "head"}
    with pytest.raises(CertificateError, match=r"sum for every weight.*head"):
        check_weights(bundle, type(expected)(outputs=fewer), threads=1)
    without = type(expected)(
        outputs=expected.outputs, sums=expected.sums, sizes=expected.sizes, stored={}
    )
    with pytest.raises(CertificateError, match="hash for every other tensor"):
        check_weights(bundle, without, threads=1)
