"""Where two runs of a module differ, beyond the roundings of their arithmetic, and in which line.

Shape letters: R texts of equal length, T tokens of each.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ortolan.export.trace.lines import Place, described, place_of_call

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

    Rounding may cause the `allowed` amount; `others` is the number of further tokens that differ.
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
    """The first difference of numbers `(R, T, ...)`, by name.

    The tolerance is relative to the largest number of this and earlier tokens. Where they differ,
    `noisy` runs the expected way with noise in the weights: a choice between two equal scores, or a
    chaotic recurrence, hangs on roundings in an honest module too.
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


class Lines(TorchFunctionMode):
    """Records in `seen` the user's lines, and what they compute for one token of the first text."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self._token = token
        self.seen: list[tuple[Place, Tensor | None]] = []

    def of_call(self, shape: Sequence[int], done: int) -> AbstractContextManager[Any]:
        """Record a call of some rows and tokens after the first `done`, if it has the token."""
        rows, tokens = self._shape = tuple(shape)
        place = self._token - done
        is_row = tokens == 1 and rows > 1  # every token alone
        self._at = (place, 0) if is_row else (0, place)
        return self if 0 <= place < (rows if is_row else tokens) else nullcontext()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and record its result if a user's line calls it."""
        out = func(*args, **(kwargs or {}))
        place, of_state = place_of_call()
        if place is not None and not of_state:
            # An assignment to `x[...]` returns nothing.
            results = out if isinstance(out, tuple) else args[:1] if out is None else [out]
            self.seen += [(place, self._numbers(x)) for x in results if isinstance(x, Tensor)]
        return out

    def _numbers(self, out: Tensor) -> Tensor | None:
        """The token's part of `(B, S, ...)`, `(B, H, S, ...)` or `(B * S, ...)`."""
        (rows, tokens), (row, token) = self._shape, self._at
        if tuple(out.shape[:2]) == (rows, tokens):
            part = out[row, token]
        elif out.dim() > 2 and (out.shape[0], out.shape[2]) == (rows, tokens):
            part = out[row, :, token]
        elif out.dim() > 1 and out.shape[0] == rows * tokens:
            part = out[row * tokens + token]
        else:
            return None
        return part.detach().float().clone()


def first_difference(one: Lines, other: Lines, tolerance: float, *, joins: bool = False) -> str:
    """Where two runs differ first for a token: ", first in `x.mean(1)` (model.py, ...)"; or "".

    With `joins`, lines may differ until they are joined with a recalled state, so that only
    differences count after which nothing is the same.
    """
    first: Place | None = None
    for (place, a), (same, b) in zip(one.seen, other.seen, strict=False):
        if place != same:
            return ""
        if a is None or b is None or a.shape != b.shape:
            continue
        if torch.allclose(a, b, rtol=0, atol=tolerance * float(a.abs().max()), equal_nan=True):
            first = None if joins else first
        else:
            first = first or place
    return "" if first is None else f", first{described(*first)}"
