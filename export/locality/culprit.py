"""Finds the user's line where a number of one token first differs between two runs."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ortolan.export.trace.lines import Place, described, place_of_call


class Lines(TorchFunctionMode):
    """Records what the user's lines compute for one token of the first text.

    Args:
        token: its place in the text.

    Attributes:
        seen: lines, and their numbers of the token.
    """

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
    """Where the runs differ first: ", first in `x.mean(1)` (model.py, ...)"; empty if unknown.

    Args:
        one: of a token.
        other: of the same token in another run.
        tolerance: relative to the token's largest number.
        joins: whether lines may differ until they are joined with a recalled state, so that only
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
