"""Prompts with images: a list of texts and images, or ids with a placeholder for each image."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortolan.runtime.bundle.manifest import Features
from ortolan.runtime.engine.pictures import Picture
from ortolan.runtime.errors import BundleKindError, InputError, shown
from ortolan.runtime.inputs.images import Image
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer

__all__ = ["Illustrated", "Part", "has_parts", "placed", "read_parts"]

Part = str | Mapping[str, Image]
"""A text, or an image as `{"image": image}`."""

_IMAGE = "image"


@dataclass(frozen=True, slots=True)
class Illustrated:
    """A prompt with images.

    Attributes:
        ids: token ids, with the placeholder once for each image.
        images: as `ortolan.runtime.inputs.images.read_pixels` takes them, in order.
    """

    ids: list[int]
    images: tuple[Any, ...]


def has_parts(prompt: Any) -> bool:
    """Whether a prompt is a list of parts with an image."""
    return isinstance(prompt, list | tuple) and any(isinstance(part, Mapping) for part in prompt)


def read_parts(
    parts: Sequence[Part], tokenizer: Tokenizer | None, features: Features | None
) -> Illustrated:
    """Encode the texts of a prompt, with placeholders between them.

    Raises:
        BundleKindError: the model reads no images.
        InputError: a part is neither a text nor an image.
        TokenizerError: there is no tokenizer, or none with the placeholder.
    """
    if features is None:
        raise no_images()
    if tokenizer is None:
        raise no_tokenizer("prompt")
    placeholder, texts, images = tokenizer.text_of(features.token), [], []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and part.keys() == {_IMAGE}:
            texts.append(placeholder)
            images.append(part[_IMAGE])
        else:
            raise InputError(
                f'A part of a prompt must be a text or {{"image": image}} (got {shown(part)}).'
            )
    return Illustrated(tokenizer.encode("".join(texts)), tuple(images))


def placed(
    prompt: Illustrated, features: Features | None, look: Callable[[Any], Picture] | None
) -> tuple[list[int], tuple[Picture, ...]]:
    """Return the ids of a prompt with those of its images' vectors, and these images.

    Args:
        prompt: ids and images.
        features: of the bundle.
        look: computes the vectors of an image.

    Raises:
        BundleKindError: the model reads no images.
        InputError: there are not as many placeholders as images, or one is no image.
    """
    if features is None or look is None:
        raise no_images()
    count = prompt.ids.count(features.token)
    if count != len(prompt.images):
        raise InputError(
            f"The prompt has {len(prompt.images)} images and {count} placeholders for images. Give "
            "each image one place, and do not write the placeholder in texts."
        )
    pictures = tuple(look(image) for image in prompt.images)
    left, ids = list(reversed(pictures)), list[int]()
    for token in prompt.ids:
        ids += left.pop().ids if token == features.token else [token]
    return ids, pictures


def no_images() -> BundleKindError:
    """The error for an image that a model of text alone cannot read."""
    return BundleKindError(
        "This model reads text only, so it takes no images. Export a checkpoint with an encoder of "
        "images, such as LLaVA."
    )
