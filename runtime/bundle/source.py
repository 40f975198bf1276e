"""A source: what an encoder reads, and the inputs of its graph."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ortolan.runtime.bundle.manifest import Manifest
    from ortolan.runtime.bundle.parts import Features

IDS, LENGTHS, PIXELS, MEL, WAVE = "input_ids", "lengths", "pixels", "mel", "wave"
"""Inputs of an encoder: ids and lengths of texts, pixels of images, or spectrograms or waves of
sounds."""

TYPES = "token_type_ids"
"""Input of an encoder that tells the texts of a pair apart, int64 like the ids."""

PATCHES = "patches"
"""Input of an encoder of images of any proportions, float32 `(squares, patches, numbers)`."""

ROW_WEIGHTS, COLUMN_WEIGHTS = "row_weights", "column_weights"
"""Inputs with patches, float32 `(squares, patches, side)`: weights of the rows and columns of a
table, whose products are the weights of its positions."""

POSITIONS = "position_ids"
"""Input of a decoder that reads images as grids: time, row and column of each token, int64
`(batch, sequence, 3)`. With patches, `(squares, patches, 3)`, where the time is 0."""

SAMPLE_TOKENS = 32
"""Tokens, or vectors, of an example input."""

Medium = Literal["texts", "images", "sounds"]

Shape = tuple[int | str, ...]
"""Sizes of axes. A named one fits every number, since it is only known at run time."""

Values = dict[str, tuple[str, Shape]]
"""Inputs or outputs of a graph by name: element type and shape."""

Feeds = dict[str, NDArray[Any]]
"""Arrays for the inputs of a graph, by name."""

Problems = Iterator[tuple[str, str]]
"""Pairs of what a manifest should have and what it has."""


class AnySource:
    """The methods of every source."""

    __slots__ = ()

    medium: ClassVar[Medium]

    is_alone: ClassVar[bool] = False
    """Whether each input is a call of its own, since padding would change it."""

    is_fixed: ClassVar[bool] = False
    """Whether all inputs have one size."""

    @property
    def most_vectors(self) -> int | None:
        """Most tokens or vectors that a decoder reads of an input; `None` if that is not known."""
        return None

    @property
    def deferred(self) -> int | None:
        """Tokens that an input counts as in batches if it is read when it is computed.

        Images are, since they are far larger than their files.
        """
        return None

    @property
    def words(self) -> str:
        """Describe the input: `texts of at most 512 tokens`."""
        raise NotImplementedError

    def inputs(self) -> Values:
        """Inputs of the graph of the encoder."""
        raise NotImplementedError

    def sample(self, vocab_size: int) -> Feeds:
        """Made-up inputs of the graph, to check that it runs."""
        raise NotImplementedError

    def count(self, value: Any) -> int:
        """Tokens or vectors that an input counts as, once it was read; 1 for an image."""
        raise NotImplementedError

    def problems(self, manifest: "Manifest") -> Problems:
        """Contradictions within the source, or with other fields of the manifest."""
        raise NotImplementedError

    def fits(self, features: "Features") -> bool:
        """Whether a decoder may read vectors of this source in this way."""
        return False


def ramp(*shape: int) -> NDArray[np.float32]:
    """Numbers from -1 to 1."""
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
