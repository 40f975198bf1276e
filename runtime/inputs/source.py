"""Texts, ids and images, checked and made into what an encoder graph takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_flag
from ortolan.runtime.bundle.interface import IDS, LENGTHS, PIXELS
from ortolan.runtime.bundle.manifest import ImageSource, Manifest, TextSource
from ortolan.runtime.errors import ContextLengthError, InputError
from ortolan.runtime.inputs.ids import checked_ids
from ortolan.runtime.inputs.images import Image, read_pixels
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer

__all__ = ["Input", "Inputs", "Source", "SourceReader", "is_batch", "pad"]

Input = str | Sequence[int] | NDArray[np.integer[Any]] | Image
"""A text or its token ids; or a path, the bytes or the pixels of an image."""

Inputs = Input | Sequence[Input]
"""One of them, or several."""

Source = list[int] | NDArray[np.float32]
"""One text as ids, or one image as pixels `(channels, height, width)`."""


class SourceReader:
    """Reads what the encoder of one bundle takes. Threads may share it.

    Args:
        manifest: of a bundle with an encoder.
        tokenizer: `None` when it takes only ids, or images.

    Attributes:
        max_tokens: most tokens of a text.
    """

    def __init__(self, manifest: Manifest, tokenizer: Tokenizer | None) -> None:
        self._manifest = manifest
        self._tokenizer = tokenizer
        # what is put around a text, and is no text of its own
        self._added = 0 if tokenizer is None else len(tokenizer.encode(""))
        self._vocab_size = manifest.vocab_size
        match manifest.source:
            case TextSource(max_tokens=limit, vocab_size=own):
                self.max_tokens = limit
                self._vocab_size = manifest.vocab_size if own is None else own
            case _:
                self.max_tokens = manifest.context_length

    def read(self, given: Any, *, truncate: bool = False) -> Source:
        """Check one input and make it ids or pixels.

        Args:
            given: text or ids, or an image where the encoder takes images. Ids are taken as they
                are; around a text comes what the tokenizer puts there.
            truncate: cut what is over the limit, at the end, and inside what the tokenizer adds.

        Raises:
            ContextLengthError: more tokens than the encoder takes.
            InputError: there is nothing in it, or it is neither.
            MissingExtraError: an image has to be decoded, and Pillow is not installed.
            TokenizerError: the tokenizer cannot take it, or the bundle has none.
        """
        truncate = checked_flag("truncate", truncate)
        source = self._manifest.source
        if isinstance(source, ImageSource):
            if truncate:
                raise InputError("truncate: expected a bundle that takes texts, got images.")
            return read_pixels(given, source)
        if isinstance(given, str):
            ids = self._encode(given, truncate=truncate)
        else:
            ids = checked_ids(given, vocab_size=self._vocab_size, what="ids", fewest=1)
            ids = ids[: self.max_tokens] if truncate else ids
        if len(ids) > self.max_tokens:
            raise ContextLengthError(
                f"{'text' if isinstance(given, str) else 'ids'}: expected at most "
                f"{self.max_tokens} tokens, got {len(ids)}. Split the text; an `Encoder` can also "
                "cut it, with truncate=True."
            )
        return ids

    def feeds(self, batch: Sequence[Source]) -> dict[str, NDArray[Any]]:
        """Inputs of the graph for several sources, which are padded on the right."""
        if isinstance(self._manifest.source, ImageSource):
            return {PIXELS: np.stack([np.asarray(pixels, np.float32) for pixels in batch])}
        return pad(batch, padding=self._manifest.tokens.pad or 0)

    def _encode(self, text: str, *, truncate: bool) -> list[int]:
        if self._tokenizer is None:
            raise no_tokenizer("text")
        if truncate:
            ids = self._tokenizer.encode_start(text, max_tokens=self.max_tokens)
        else:
            ids = self._tokenizer.encode(text)
        if len(ids) <= self._added:
            raise InputError(
                f"text: expected at least one token, got {text[:40]!r}, which has none. "
                "Leave it out."
            )
        return ids


def is_batch(inputs: Any) -> bool:
    """Whether these are several inputs: a list or a tuple, except for one of integers."""
    if not isinstance(inputs, list | tuple):
        return False
    return len(inputs) == 0 or not isinstance(inputs[0], int | np.integer)


def pad(rows: Sequence[Any], *, padding: int) -> dict[str, NDArray[Any]]:
    """Ids of any lengths as `input_ids` int64 `(B, T)` and `lengths` int32 `(B,)`."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    padded = [[*row, *[padding] * (longest - len(row))] for row in rows]
    return {IDS: np.array(padded, np.int64), LENGTHS: np.array(lengths, np.int32)}
