import pytest
from tests.export.quantize.low_bit import FOUR_BITS, SCHEMES, label
from tests.export.quantize.weights import gaussian, group_errors, heavy_tailed, squared_error

from ortolan.export.quantize import hqq, rtn
from ortolan.export.scheme import Scheme

every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=label)


@pytest.mark.parametrize("scheme", FOUR_BITS, ids=label)
def test_error_on_a_heavy_tailed_weight_is_below_that_of_rounding(scheme: Scheme) -> None:
    weight = heavy_tailed(32, 4 * scheme.group)
    error = squared_error(weight, hqq.quantize(weight, scheme))
    assert error < 0.96 * squared_error(weight, rtn.quantize(weight, scheme))


@pytest.mark.parametrize("scheme", FOUR_BITS, ids=label)
def test_errors_that_stand_help_the_rest(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = gaussian(64, 512)
    error = squared_error(weight, hqq.quantize(weight, scheme))
    monkeypatch.setattr(hqq, "STIFFNESS", 1e-6)  # none is left: least squares
    assert error < 0.995 * squared_error(weight, hqq.quantize(weight, scheme))


@every_scheme
def test_no_group_is_worse_than_rounded(scheme: Scheme) -> None:
    weight = gaussian(8, 2 * scheme.group + 5)
    got, rounded = (group_errors(weight, m.quantize(weight, scheme)) for m in (hqq, rtn))
    assert bool((got <= rounded * 1.0001).all())
    assert bool((got < rounded * 0.999).any())
