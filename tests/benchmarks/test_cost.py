"""Cost of a token by sequence length."""

import pytest

import cost


def test_exponents_are_slopes_over_the_upper_half() -> None:
    points = [
        cost.Point(
            kind="lstm",
            length=length,
            train_s=max(length, 256) ** 1.5 if length <= 512 else None,
            prefill_s=None,
            token_s=1e-3,
            state_bytes=4 * length,
        )
        for length in (64, 128, 256, 512, 1024)
    ]
    assert cost.exponent(points, "train_s") == pytest.approx(1.5)
    assert cost.exponent(points, "token_s") == pytest.approx(0)
    assert cost.exponent(points, "prefill_s") is None
