"""Linear layers that hold several projections in one matrix.

One wide product is faster than several narrow ones, and the attention op takes queries, keys and
values in one tensor. Checkpoints store them separately: `parts` says where to split.
"""

from torch import nn


class PackedLinear(nn.Linear):
    """`nn.Linear` whose output rows belong to several projections."""

    def __init__(self, in_features: int, parts: tuple[int, ...], *, bias: bool) -> None:
        super().__init__(in_features, sum(parts), bias=bias)
        self.parts = parts


def packed_rows(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Rows of each projection, by the name of the parameter that holds them."""
    return {
        f"{name}.{kind}": layer.parts
        for name, layer in module.named_modules()
        if isinstance(layer, PackedLinear)
        for kind in ("weight", "bias")
    }
