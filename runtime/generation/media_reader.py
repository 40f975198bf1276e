"""Turns the images or sounds of a prompt into vectors for a decoder."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime import limits
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.parts import Features, Tiles
from ortolan.runtime.bundle.sound_sources import ChunkedSource
from ortolan.runtime.engine.pictures import Picture, Pictures, placed
from ortolan.runtime.errors import InputError
from ortolan.runtime.inputs.audio import read_parts
from ortolan.runtime.inputs.medium import Medium
from ortolan.runtime.inputs.readers import read_image
from ortolan.runtime.inputs.tiles import Cut, cut, surrounded
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer

Parts = Sequence[NDArray[np.float32]]
"""An image or its tiles, or the parts of the spectrogram of a sound."""


class Seen(NamedTuple):
    """An image or a sound in a prompt; ids of its vectors and of the tokens around them."""

    picture: Picture
    ids: Sequence[int]


class MediaReader:
    """Computes the vectors of images or sounds, or finds those of an earlier prompt."""

    def __init__(
        self,
        encoder: Manifest,
        vectors: Callable[[NDArray[np.float32]], NDArray[np.float32]],
        features: Features,
        pictures: Pictures,
    ) -> None:
        # `open_part` opens no other encoders
        self._source = cast("ImageSource | PatchSource | ChunkedSource", encoder.source)
        self._vectors_of = vectors
        self._features = features
        self._pictures = pictures

    def read(self, medium: Medium, tokenizer: Tokenizer | None) -> Seen:
        """Return an image or a sound as ids of a prompt."""
        source, tiles = self._source, self._features.tiles
        if isinstance(source, ChunkedSource):
            return self._found(self._sound(medium, source))
        if tiles is not None:
            return self._tiled(cut(medium.value, source, tiles), tiles, tokenizer)
        pixels, columns = read_image(medium.value, source), None
        if self._pictures.are_grids and isinstance(source, PatchSource):
            columns = source.columns(pixels)
        return self._found([pixels], columns=columns)

    def _sound(self, medium: Medium, source: ChunkedSource) -> Parts:
        parts = read_parts(medium.value, source, rate=medium.rate)
        count, most = sum(map(source.count, parts)), limits.MAX_FEATURES
        if count > most:
            raise InputError(
                f"The sound takes {count} tokens of a prompt, more than {most}. Split it."
            )
        return parts

    def _tiled(self, image: Cut, tiles: Tiles, tokenizer: Tokenizer | None) -> Seen:
        if tokenizer is None:
            raise no_tokenizer("image")
        token = self._features.token
        text = surrounded(image, tiles, tokenizer.text_of(token))
        picture = self._found(image.pixels).picture
        tokens = tokenizer.encode(text, add_special_tokens=False)
        counts = [self._count(tile) for tile in image.pixels]
        return Seen(picture, placed(tokens, token, picture.parts(counts)))

    def _found(self, parts: Parts, *, columns: int | None = None) -> Seen:
        picture = self._pictures.find(parts, lambda: self._vectors(parts), columns=columns)
        return Seen(picture, picture.ids)

    def _vectors(self, parts: Parts) -> NDArray[np.float32]:
        vectors = [self._vectors_of(part) for part in parts]
        return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)

    def _count(self, part: NDArray[np.float32]) -> int:
        is_of_any_size = self._source.is_alone
        return self._source.count(part) if is_of_any_size else self._features.vectors
