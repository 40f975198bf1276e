"""The weights of a module as their codes give them."""

from collections.abc import Callable, Mapping

from torch import Tensor

from ortolan.export.quantize.blocks import Codes, dequantize
from ortolan.export.quantize.places import Place, places_of
from ortolan.modeling.weights import Replaced, Weights

Values = Callable[[int, int], Tensor]
"""Rows `[start:stop]` of what the codes of a stored weight stand for, float32; of experts, those of
all of them one after the other."""


def rounded_weights(weights: Weights, codes: Mapping[str, Codes]) -> Replaced:
    """Weights of a module, some of them dequantized where they are read.

    Args:
        weights: as they were trained; their shapes are these.
        codes: of all rows of some weights, by the name that the graphs give them.
    """

    def values(name: str) -> Values:
        return lambda start, stop: dequantize(codes[name].rows(start, stop))

    places = places_of(weights, codes)
    return Replaced(
        weights,
        {
            leaf: RoundedWeight(weights.shape(leaf), place, values(place.name))
            for leaf, place in places.items()
        },
    )


class RoundedWeight:
    """One weight of a module, by the codes of the weight that it is stored in."""

    def __init__(self, shape: tuple[int, ...], place: Place, values: Values) -> None:
        """Read nothing yet.

        Args:
            shape: of the weight.
            place: where it is in the stored one.
            values: of the stored one.
        """
        self._shape, self._place, self._values = shape, place, values

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the weight."""
        return self._shape

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of the weight, float32; of experts, whole ones."""
        place = self._place
        if place.transposed:
            return self._values(place.start, place.stop)[:, start:stop].T
        if len(self._shape) == 2:
            return self._values(place.start + start, place.start + stop)
        _, count, columns = self._shape
        first, last = (count * (place.start + each) for each in (start, stop))
        return self._values(first, last).view(-1, count, columns)
