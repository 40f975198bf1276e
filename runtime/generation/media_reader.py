"""Turns the images or sounds of a prompt into vectors for a decoder."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ortolan.runtime import limits
from ortolan.runtime.bundle.parts import Features, Tiles
from ortolan.runtime.engine.pictures import Pictures
from ortolan.runtime.errors import InputError
from ortolan.runtime.generation.request_reader import Seen
from ortolan.runtime.inputs.medium import Medium
from ortolan.runtime.inputs.tiles import surrounded
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer

if TYPE_CHECKING:
    from ortolan.runtime.encoder import Encoder


class MediaReader:
    """Computes the vectors of images or sounds, or finds those of an earlier prompt."""

    def __init__(self, encoder: "Encoder", features: Features, pictures: Pictures) -> None:
        self._encoder = encoder
        self._features = features
        self._pictures = pictures

    def read(self, medium: Medium, tokenizer: Tokenizer | None) -> Seen:
        """Return an image or a sound as ids of a prompt."""
        tiles = self._features.tiles
        if medium.kind == "sounds":
            return self._sound(medium.value, medium.rate)
        if isinstance(tiles, Tiles):
            return self._tiled(medium.value, tiles, tokenizer)
        encoder = self._encoder
        pixels = encoder.pixels(medium.value)
        columns = encoder.columns(pixels) if self._pictures.are_grids else None
        picture = self._pictures.find((pixels,), lambda: encoder.vectors(pixels), columns=columns)
        return Seen(picture, picture.ids)

    def _tiled(self, image: Any, tiles: Tiles, tokenizer: Tokenizer | None) -> Seen:
        if tokenizer is None:
            raise no_tokenizer("image")
        encoder, features = self._encoder, self._features
        parts = encoder.cut(image, tiles)
        text = surrounded(parts, tiles, tokenizer.text_of(features.token))
        picture = self._pictures.find(
            parts.pixels, lambda: np.concatenate([encoder.vectors(tile) for tile in parts.pixels])
        )
        tokens = tokenizer.encode(text, add_special_tokens=False)
        counts = [encoder.count((tile,)) for tile in parts.pixels]
        return Seen(picture, picture.between(tokens, features.token, counts))

    def _sound(self, sound: Any, rate: int | None) -> Seen:
        encoder = self._encoder
        parts = encoder.parts(sound, rate=rate)
        count, most = encoder.count(parts), limits.MAX_FEATURES
        if count > most:
            raise InputError(
                f"The sound takes {count} tokens of a prompt, more than {most}. Split it."
            )
        picture = self._pictures.find(
            parts,
            lambda: np.concatenate([encoder.vectors(part) for part in parts]),
        )
        return Seen(picture, picture.ids)
