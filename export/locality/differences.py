"""Where two runs of a module differ, beyond the roundings of their arithmetic.

Shape letters: R texts of equal length, T tokens of each.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

CLOSE = 1e-4
"""Largest rounding error between calls of other sizes, relative to the largest number so far: the
same as between a bundle and PyTorch."""

SAME = 1e-5
"""The same between calls that multiply equally many vectors."""

ROUNDINGS = 64
"""The same for other types than float32, in units of their last place."""

NOISY = 8
"""A difference counts if noise in the weights causes none that is at least an eighth as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first token of a text that differs, in the output that differs first.

    Attributes:
        output: its name.
        token: its place.
        amount: by how much.
        allowed: how much rounding may cause.
        others: number of further tokens that differ.
    """

    output: str
    token: int
    amount: float
    allowed: float
    others: int

    def __str__(self) -> str:
        more = f", and {self.others} more tokens" if self.others else ""
        return (
            f"{self.output} at token {self.token} by {self.amount:.2g} (roundings: at most "
            f"{self.allowed:.2g}){more}"
        )


def tolerance_of(dtype: torch.dtype, tolerance: float) -> float:
    """A tolerance of float32 for another type."""
    return max(tolerance, 0.0 if dtype == torch.float32 else ROUNDINGS * torch.finfo(dtype).eps)


def difference(
    expected: Mapping[str, Tensor],
    got: Mapping[str, Tensor],
    tolerance: float,
    *,
    noisy: Callable[[], Iterable[Mapping[str, Tensor]]] = list,
) -> Difference | None:
    """The first difference of two runs.

    Args:
        expected: numbers `(R, T, ...)` by name.
        got: the same from another run.
        tolerance: relative to the largest number of this and earlier tokens.
        noisy: runs like the expected one, with noise in the weights. Called where there is a
            difference: a choice between two equal scores, or a chaotic recurrence, hangs on
            roundings in an honest module too.
    """
    noise: list[Mapping[str, Tensor]] | None = None
    for name, one in expected.items():
        other = got.get(name)
        if other is None or other.shape != one.shape:
            return Difference(output=name, token=0, amount=torch.inf, allowed=0, others=0)
        limit_T = tolerance * _sizes(one).cummax(0).values
        distance_T = _distances(one, other)
        wrong_T = distance_T > limit_T
        if not wrong_T.any():
            continue
        noise = list(noisy()) if noise is None else noise
        for run in noise:
            wrong_T &= distance_T > NOISY * _distances(one, run[name])
        places = wrong_T.nonzero()[:, 0].tolist()
        if places:
            return Difference(
                output=name,
                token=places[0],
                amount=float(distance_T[places[0]]),
                allowed=float(limit_T[places[0]]),
                others=len(places) - 1,
            )
    return None


def _sizes(x: Tensor) -> Tensor:
    """The largest finite number of every token, `(T,)`."""
    return _by_token(torch.nan_to_num(x.float(), nan=0, posinf=0, neginf=0).abs())


def _distances(one: Tensor, other: Tensor) -> Tensor:
    """The largest difference of every token, `(T,)`."""
    one, other = one.float(), other.float()
    same = (one == other) | (one.isnan() & other.isnan())
    distance = torch.where(same, 0.0, (one - other).abs())
    return _by_token(torch.nan_to_num(distance, nan=torch.inf, posinf=torch.inf))


def _by_token(x: Tensor) -> Tensor:
    return x.transpose(0, 1).flatten(1).amax(1) if x.numel() else x.new_zeros(x.shape[1])
