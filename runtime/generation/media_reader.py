"""Turns the images or sounds of a prompt into vectors for a decoder."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime import limits
from ortolan.runtime.bundle.parts import Features, Tiles
from ortolan.runtime.engine.pictures import Picture, Pictures
from ortolan.runtime.errors import InputError
from ortolan.runtime.inputs.medium import Medium
from ortolan.runtime.inputs.source import SourceReader
from ortolan.runtime.inputs.tiles import surrounded
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer


class Seen(NamedTuple):
    """An image or a sound in a prompt; ids of its vectors and of the tokens around them."""

    picture: Picture
    ids: Sequence[int]


class MediaReader:
    """Computes the vectors of images or sounds, or finds those of an earlier prompt."""

    def __init__(
        self,
        source: SourceReader,
        vectors: Callable[[NDArray[np.float32]], NDArray[np.float32]],
        features: Features,
        pictures: Pictures,
    ) -> None:
        self._source = source
        self._vectors_of = vectors
        self._features = features
        self._pictures = pictures

    def read(self, medium: Medium, tokenizer: Tokenizer | None) -> Seen:
        """Return an image or a sound as ids of a prompt."""
        tiles, columns = self._features.tiles, None
        if medium.kind == "images" and isinstance(tiles, Tiles):
            return self._tiled(medium.value, tiles, tokenizer)
        if medium.kind == "images":
            parts = [self._source.pixels(medium.value)]
            columns = self._source.columns(parts[0]) if self._pictures.are_grids else None
        else:
            parts = self._source.parts(medium.value, rate=medium.rate)
            count, most = sum(map(self._source.vectors, parts)), limits.MAX_FEATURES
            if count > most:
                raise InputError(
                    f"The sound takes {count} tokens of a prompt, more than {most}. Split it."
                )
        picture = self._pictures.find(parts, lambda: self._vectors(parts), columns=columns)
        return Seen(picture, picture.ids)

    def _tiled(self, image: Any, tiles: Tiles, tokenizer: Tokenizer | None) -> Seen:
        if tokenizer is None:
            raise no_tokenizer("image")
        token = self._features.token
        parts = self._source.cut(image, tiles)
        text = surrounded(parts, tiles, tokenizer.text_of(token))
        picture = self._pictures.find(parts.pixels, lambda: self._vectors(parts.pixels))
        tokens = tokenizer.encode(text, add_special_tokens=False)
        counts = [self._source.vectors(tile) for tile in parts.pixels]
        return Seen(picture, picture.between(tokens, token, counts))

    def _vectors(self, parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        vectors = [self._vectors_of(part) for part in parts]
        return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
