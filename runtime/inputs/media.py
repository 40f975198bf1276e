"""Prompts with images or sounds: a list of parts, or ids with a placeholder for each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortolan.runtime.bundle.manifest import Manifest
from ortolan.runtime.bundle.parts import Features, Wrapping
from ortolan.runtime.errors import BundleKindError, InputError, shown
from ortolan.runtime.inputs.medium import Medium
from ortolan.runtime.inputs.tokenizer import Tokenizer, no_tokenizer

Part = str | Mapping[str, Any]
"""A text; an image as `{"image": image}`; or a sound as `{"audio": sound}`, where an array of
samples may have a `"rate"`."""


@dataclass(frozen=True, slots=True)
class MediaPrompt:
    """A prompt with images or sounds.

    Attributes:
        ids: token ids, with the placeholder once for each medium.
        media: in order.
    """

    ids: list[int]
    media: tuple[Medium, ...]


def read_prompt(
    parts: Sequence[Part], tokenizer: Tokenizer | None, manifest: Manifest
) -> MediaPrompt:
    """Encode the texts of a prompt, with placeholders between them."""
    read = [part if isinstance(part, str) else _medium(part) for part in parts]
    media = tuple(part for part in read if isinstance(part, Medium))
    if tokenizer is None:
        raise no_tokenizer("prompt")
    features = manifest.features
    placeholder = "" if features is None else wrapped(tokenizer.text_of(features.token), features)
    text = "".join(part if isinstance(part, str) else placeholder for part in read)
    tokenizer.check_length(text, manifest.context_length)
    return MediaPrompt(tokenizer.encode(text), media)


def check_media(media: Sequence[Medium], manifest: Manifest) -> None:
    """Raise BundleKindError if a model cannot read these images or sounds."""
    for medium in media:
        if manifest.features is not None and manifest.media == medium.kind:
            continue
        reads = "text only" if manifest.features is None else f"{manifest.media} and text"
        example = "LLaVA" if medium.kind == "images" else "Qwen3-ASR"
        raise BundleKindError(
            f"This model reads {reads}, so it takes no {medium.kind}. Export a checkpoint with an "
            f"encoder of {medium.kind}, such as {example}."
        )


def wrapped(placeholder: str, features: Features) -> str:
    """A placeholder with the texts around an image that is read as a whole."""
    wrapping = features.wrapping
    if not isinstance(wrapping, Wrapping):
        return placeholder
    return f"{wrapping.before}{placeholder}{wrapping.after}"


def _medium(part: Any) -> Medium:
    keys = set(part) if isinstance(part, Mapping) else set()
    if keys == {"image"}:
        return Medium("images", part["image"])
    if "audio" in keys <= {"audio", "rate"}:
        return Medium("sounds", part["audio"], part.get("rate"))
    raise InputError(
        'A part of a prompt must be a text or {"image": image} or {"audio": sound} (got '
        f"{shown(part)})."
    )
