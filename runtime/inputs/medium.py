"""An image or a sound in a prompt."""

from typing import Any, Literal, NamedTuple


class Medium(NamedTuple):
    """An image or a sound in a prompt.

    Attributes:
        kind: which of them.
        value: as `read_pixels` of `ortolan.runtime.inputs.images` or `read_samples` of
            `ortolan.runtime.inputs.audio` takes it.
        rate: samples per second of an array; None for the rate of the encoder.
    """

    kind: Literal["images", "sounds"]
    value: Any
    rate: int | None = None
