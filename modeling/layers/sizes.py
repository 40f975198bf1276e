"""Questions about sizes while a graph is traced, in which most are symbols.

A branch on a symbol would fix it or raise a guard; these ask only what is certain.
"""

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

Size = int | torch.SymInt


def is_one(size: Size) -> bool:
    """Whether a size is 1, and not only in the example of the trace."""
    return isinstance(size, int) and size == 1


def is_same(one: Size, other: Size) -> bool:
    """Whether two sizes are always equal."""
    return statically_known_true(one == other)
