"""Linear layers that hold several projections in one matrix.

One wide product runs faster than several narrow ones, so queries, keys and values, which the
attention op takes side by side, share a matrix. Checkpoints keep them apart: `parts` says where
to cut.
"""

from torch import nn


class PackedLinear(nn.Linear):
    """`nn.Linear` whose output rows belong to several projections.

    Attributes:
        parts: rows of each projection, in order; their sum is `out_features`.
    """

    def __init__(self, in_features: int, parts: tuple[int, ...], *, bias: bool) -> None:
        super().__init__(in_features, sum(parts), bias=bias)
        self.parts = parts


def packed_rows(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Rows of each projection, by the name of the parameter that holds them all."""
    return {
        f"{name}.{kind}": layer.parts
        for name, layer in module.named_modules()
        if isinstance(layer, PackedLinear)
        for kind in ("weight", "bias")
    }
