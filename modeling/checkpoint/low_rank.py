"""The low-rank updates of an adapter, of our weights instead of the published ones.

A weight of ours may hold several published matrices, such as queries, keys and values. Their
updates become one, whose factors lie side by side:

            [ B_q         ]   [ A_q ]
    update  [     B_k     ] @ [ A_k ]
            [         B_v ]   [ A_v ]

Shape letters: N rows, K columns, R rank.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ortolan.modeling.checkpoint.adapter import Adapted, LowRank
from ortolan.modeling.checkpoint.mapped_weights import MappedWeights
from ortolan.modeling.errors import CheckpointError
from ortolan.modeling.weights import Piece


class _Tensors:
    """Tensors in memory, read like those of a checkpoint."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str, start: int, stop: int, *, axis: int = 0) -> Tensor:
        return self._tensors[name].narrow(axis, start, stop - start)


def updates_of(weights: MappedWeights, adapter: Adapted) -> dict[str, LowRank]:
    """The update of each of our weights that an adapter changes, by name."""
    updates, used = dict[str, LowRank](), set[str]()
    for ours, pieces in weights.pieces.items():
        rows, start, parts = weights.shape(ours)[0], 0, []
        for piece in pieces:
            factors = adapter.factors(piece.name) if isinstance(piece, Piece) else None
            if factors is not None and isinstance(piece, Piece):
                used.add(piece.name)
                left, right = _of_piece(piece, factors)
                padded = torch.zeros(rows, left.shape[1])
                padded[start : start + piece.rows] = left
                parts.append(LowRank(padded, right))
            start += piece.rows
        if parts:
            left = torch.cat([part.left for part in parts], dim=1)
            updates[ours] = LowRank(left, torch.cat([part.right for part in parts]))
    unused = [name for name in adapter.ranks if name not in used]
    if unused:
        raise CheckpointError(
            f"{unused[0]}: an adapter of this tensor can only be merged, not chosen at run time. "
            "Export the checkpoint with --adapter, or train the adapter on other modules."
        )
    return updates


def _of_piece(piece: Piece, factors: LowRank) -> LowRank:
    """The update of our rows of a published tensor."""
    left, right = factors
    target = piece.target._replace(offset=0.0)  # an update has none
    if target.transposed:
        stored, right = right, left.T
    else:
        stored = left
    piece = piece._replace(target=target)
    return LowRank(piece.read(_Tensors({piece.name: stored}), 0, piece.rows), right)
