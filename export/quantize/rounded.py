"""The weights of a module as their codes give them."""

from collections.abc import Mapping

from torch import Tensor

from ortolan.export.quantize.blocks import Codes, dequantize
from ortolan.export.quantize.places import places_of
from ortolan.modeling.weights import Weights


class RoundedWeights:
    """Weights of a module, some of them dequantized.

    Args:
        weights: as they were trained; their shapes are these.
        codes: of all rows of some weights, by the name that the graphs give them.
    """

    def __init__(self, weights: Weights, codes: Mapping[str, Codes]) -> None:
        self._weights = weights
        self._codes = codes
        self._places = places_of(weights, codes)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return self._weights.shape(name)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `[start:stop]` of a weight."""
        place = self._places.get(name)
        if place is None:
            return self._weights.rows(name, start, stop)
        codes = self._codes[place.name]
        if place.transposed:
            return dequantize(codes.rows(place.start, place.stop)).T[start:stop]
        first = place.start + start
        return dequantize(codes.rows(first, first + stop - start))
