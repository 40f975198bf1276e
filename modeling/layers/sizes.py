"""Questions about tensor sizes, most of which are symbols in a trace.

Branching on a symbol would specialize it or add a guard; these functions answer only if certain.
"""

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

Size = int | torch.SymInt


def is_one(size: Size) -> bool:
    """Whether a size is always 1."""
    return isinstance(size, int) and size == 1


def is_same(one: Size, other: Size) -> bool:
    """Whether two sizes are always equal."""
    return statically_known_true(one == other)
