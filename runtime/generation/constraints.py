"""What may stand where in a generated text, whatever the model says.

Knows ids and places. Does not know logits' meaning, nor why a checkpoint asks for this.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.manifest import Tokens

__all__ = ["Constraints"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Tokens that are forced or ruled out.

    Attributes:
        first: the first new token, where there is no choice.
        last: the last new token, where the length runs out.
        suppressed: never chosen where there is a choice.
    """

    first: int | None = None
    last: int | None = None
    suppressed: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokens: Tokens) -> "Constraints":
        """Those of a manifest."""
        return cls(first=tokens.forced_first, last=tokens.forced_last, suppressed=tokens.suppressed)

    def forced(self, index: int, limit: int) -> int | None:
        """The only token that new token number `index` of at most `limit` may be, if any."""
        if self.last is not None and index == limit - 1:
            return self.last
        return self.first if index == 0 else None

    def suppress(self, logits: NDArray[np.float32]) -> None:
        """Rule tokens out in place: logits `(..., V)`."""
        # one by one: an index of several takes longer than a step of a tiny model leaves for it
        for token in self.suppressed:
            logits[..., token] = -math.inf
