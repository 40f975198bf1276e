"""Maps weights of the module to the rounded weights, which may join several of them."""

from collections.abc import Iterable
from typing import NamedTuple

from torch import nn

from ortolan.export.derived import leaves_of
from ortolan.modeling.weights import Weights


class Place(NamedTuple):
    """Rows `[start:stop]` of the rounded weight `name`, which joins `parts` weights of the module.

    `product` is the module's own; its columns are the rows if it is `transposed`.
    """

    product: str
    name: str
    start: int
    stop: int
    parts: int
    transposed: bool


def places_of(weights: Weights, plan: Iterable[str]) -> dict[str, Place]:
    """The place of every weight of the module, by its name."""
    places = {}
    for name in plan:
        leaves, start = leaves_of(weights, name), 0
        for leaf in leaves:
            stop = start + leaf.rows
            place = Place(leaf.name, name, start, stop, len(leaves), leaf.transposed)
            places[leaf.name] = place
            start = stop
    return places


def tables_of(module: nn.Module) -> set[str]:
    """Names of the embedding tables."""
    tables = {id(layer.weight) for layer in module.modules() if isinstance(layer, nn.Embedding)}
    return {name for name, parameter in module.named_parameters() if id(parameter) in tables}
