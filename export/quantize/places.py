"""Where the weights of a module lie among the weights that are rounded, which may join several."""

from collections.abc import Iterable
from typing import NamedTuple

from ortolan.export.derived import leaves_of
from ortolan.modeling.weights import Weights


class Place(NamedTuple):
    """Where the weight of a product is among those of a plan.

    Attributes:
        product: the name of its weight.
        name: of the planned weight.
        start: its first row there.
        stop: the row after its last.
        parts: weights that make up the planned one.
        transposed: the rows are its columns.
    """

    product: str
    name: str
    start: int
    stop: int
    parts: int
    transposed: bool


def places_of(weights: Weights, plan: Iterable[str]) -> dict[str, Place]:
    """Where each weight of the module is stored, by its name."""
    places = {}
    for name in plan:
        leaves, start = leaves_of(weights, name), 0
        for leaf in leaves:
            stop = start + leaf.rows
            place = Place(leaf.name, name, start, stop, len(leaves), leaf.transposed)
            places[leaf.name] = place
            start = stop
    return places
