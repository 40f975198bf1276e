"""Sources: how inputs of an encoder are read and become arrays of its graph."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_flag
from ortolan.runtime.bundle.manifest import Manifest, wrong_kind
from ortolan.runtime.errors import BundleKindError
from ortolan.runtime.inputs.audio import Sound
from ortolan.runtime.inputs.images import Image
from ortolan.runtime.inputs.tokenizer import no_tokenizer

if TYPE_CHECKING:
    from ortolan.runtime.bundle.parts import Tiles
    from ortolan.runtime.inputs.ids import WindowIds
    from ortolan.runtime.inputs.tiles import Cut

Input = str | tuple[str, str] | Sequence[int] | NDArray[np.integer[Any]] | Image | Sound
"""A text, two texts, or token ids; or an image as a path, bytes or pixels; or a sound as a path,
bytes or samples."""

Inputs = Input | Sequence[Input]
"""One input or several."""

Source = list[int] | NDArray[np.float32]
"""A text as token ids, an image as pixels `(channels, height, width)`, or a sound as a spectrogram
`(bins, frames)` or a wave `(samples,)`."""

Feeds = dict[str, NDArray[Any]]
"""Inputs of a graph by name."""


class SourceReader(ABC):
    """Reads inputs for the encoder of a bundle. Threads may share it.

    Attributes:
        max_tokens: maximum number of tokens of a text.
        prompts: texts that an embedding model was trained with before others, by name.
        default_prompt: name of the one to use if the caller names none.
        is_alone: whether each input is a call of its own, since padding would change it.
        deferred: number of tokens that an input counts as before it is read, if it is read when it
            is computed, since it is far larger than its file; `None` reads at once.
    """

    prompts: Mapping[str, str] = {}
    default_prompt: str | None = None
    is_alone = False
    deferred: int | None = None

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.max_tokens = manifest.context_length

    @abstractmethod
    def read(self, value: Any, *, truncate: bool = False) -> Source:
        """Return one input as token ids, pixels, a spectrogram or a wave."""

    @abstractmethod
    def feeds(self, batch: Sequence[Source]) -> Feeds:
        """Return graph inputs for a batch of sources."""

    def length(self, source: Source) -> int:
        """Number of tokens or vectors that a source counts as in batches."""
        return len(source)

    def calls(self, batch: Sequence[Source]) -> list[Feeds]:
        """Return graph inputs for a batch of sources: one call, or one for each."""
        return [self.feeds([source]) for source in batch] if self.is_alone else [self.feeds(batch)]

    def checked_truncate(self, truncate: bool) -> bool:
        """Return the flag if it applies to this encoder; or InputError."""
        return checked_flag("truncate", truncate)

    def read_spans(self, value: Any, *, truncate: bool = False) -> Source:
        """Return a text as token ids that know their characters; same errors as `read`."""
        raise no_tokenizer("text")

    def read_windows(
        self, question: str, context: str, *, max_tokens: int, stride: int
    ) -> list["WindowIds"]:
        """Return a question with each part of its context."""
        raise no_tokenizer("question and context")

    # --- vectors for a decoder ------------------------------------------------------------------

    def pixels(self, image: Image) -> NDArray[np.float32]:
        """Read an image, `(channels, height, width)`."""
        raise self._wrong("pixels", "an encoder of images")

    def cut(self, image: Image, tiles: "Tiles") -> "Cut":
        """Read an image in tiles."""
        raise self._wrong("pixels", "an encoder of images")

    def columns(self, pixels: NDArray[np.float32]) -> int:
        """Count the vectors in a row of an image that keeps its proportions."""
        raise self._wrong("columns", "an encoder of images that keep their proportions")

    def parts(self, sound: Sound, *, rate: int | None = None) -> list[NDArray[np.float32]]:
        """Read a sound of any length as spectrograms `(bins, frames)`."""
        raise self._wrong("parts", "an encoder of sounds in chunks")

    def vectors(self, values: NDArray[np.float32]) -> int:
        """Count the vectors of `pixels` or of one of the `parts`."""
        raise self._wrong("parts", "an encoder of sounds in chunks")

    def _wrong(self, what: str, expected: str) -> BundleKindError:
        return wrong_kind(self._manifest, what=what, expected=expected)


def has_parts(prompt: Any) -> bool:
    """Whether a prompt is a list of texts and images, which are mappings."""
    return isinstance(prompt, list | tuple) and any(isinstance(part, Mapping) for part in prompt)


def is_batch(inputs: Any) -> bool:
    """Whether inputs are a list or tuple of inputs, rather than one of token ids or parts."""
    if not isinstance(inputs, list | tuple) or has_parts(inputs):
        return False
    return len(inputs) == 0 or not isinstance(inputs[0], int | np.integer)


def as_list(inputs: Any) -> list[Any]:
    """The inputs of a batch, or one input as a batch."""
    return list(inputs) if is_batch(inputs) else [inputs]
