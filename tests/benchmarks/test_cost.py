"""Cost of a token by sequence length: slopes, tables, and points over the time limit."""

from pathlib import Path

import pytest

import cost
from cost import Point
from ortolan.modeling.models.transformer import build


def point(kind: str, length: int, seconds: float | None) -> Point:
    return Point(
        kind=kind,
        length=length,
        train_s=seconds,
        prefill_s=seconds,
        token_s=1e-3,
        state_bytes=4 * length,
    )


def test_exponents_are_slopes_over_the_upper_half() -> None:
    points = [point("lstm", n, max(n, 256) ** 1.5) for n in (64, 128, 256, 512)]
    assert cost.exponent(points, "train_s") == pytest.approx(1.5)
    assert cost.exponent(points, "token_s") == pytest.approx(0)
    assert cost.exponent([point("lstm", 64, 1.0), point("lstm", 128, None)], "train_s") is None


def test_models_have_about_the_same_number_of_weights() -> None:
    for kind in cost.KINDS:
        model = build(cost._config(kind, 64))
        assert 1.0e6 < sum(weight.numel() for weight in model.parameters()) < 1.2e6


@pytest.mark.slow
def test_a_point_is_measured(tmp_path: Path) -> None:
    model = build(cost._config("ntm", 64))
    first, last = cost.measure("ntm", model, (8, 16), tmp_path / "bundle", limit=1e-9)
    assert first.train_s is not None
    assert first.token_s is not None
    assert (last.train_s, last.prefill_s, last.token_s) == (None, None, None)
