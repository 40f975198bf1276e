"""Reads inputs of an encoder, which become arrays of its graph."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_flag
from ortolan.runtime.bundle.source import Feeds
from ortolan.runtime.inputs.audio import Sound
from ortolan.runtime.inputs.images import Image
from ortolan.runtime.inputs.tokenizer import no_tokenizer

if TYPE_CHECKING:
    from ortolan.runtime.bundle.source import AnySource
    from ortolan.runtime.inputs.ids import TextIds

Input = str | tuple[str, str] | Sequence[int] | NDArray[np.integer[Any]] | Image | Sound
"""A text, two texts, or token ids; or an image as a path, bytes or pixels; or a sound as a path,
bytes or samples."""

Inputs = Input | Sequence[Input]
"""One input or several."""

ReadInput = list[int] | NDArray[np.float32]
"""A text as token ids, an image as pixels `(channels, height, width)`, or a sound as a spectrogram
`(bins, frames)` or a wave `(samples,)`."""


class InputReader(ABC):
    """Reads inputs for the encoder of a bundle. Threads may share it.

    Attributes:
        max_tokens: maximum number of tokens of a text.
        prompts: texts that an embedding model was trained with before others, by name.
        default_prompt: name of the one to use if the caller names none.
    """

    prompts: Mapping[str, str] = {}
    default_prompt: str | None = None

    def __init__(self, source: "AnySource", max_tokens: int) -> None:
        self.is_alone, self.deferred, self.length = source.is_alone, source.deferred, source.count
        self.max_tokens = max_tokens

    @abstractmethod
    def read(self, value: Any, *, truncate: bool = False) -> ReadInput:
        """Return one input as token ids, pixels, a spectrogram or a wave."""

    @abstractmethod
    def feeds(self, batch: Sequence[ReadInput]) -> Feeds:
        """Return graph inputs for a batch of sources; just one where each `is_alone`."""

    def calls(self, batch: Sequence[ReadInput]) -> list[Feeds]:
        """Return graph inputs for a batch of sources: one call, or one for each."""
        return [self.feeds([source]) for source in batch] if self.is_alone else [self.feeds(batch)]

    def checked_truncate(self, truncate: bool) -> bool:
        """Return the flag if it applies to this encoder; or InputError."""
        return checked_flag("truncate", truncate)

    def read_spans(self, value: Any, *, truncate: bool = False) -> ReadInput:
        """Return a text as token ids that know their characters; same errors as `read`."""
        raise no_tokenizer("text")

    def read_windows(
        self, question: str, context: str, *, max_tokens: int, stride: int
    ) -> list["TextIds"]:
        """Return a question with each part of its context."""
        raise no_tokenizer("question and context")


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
