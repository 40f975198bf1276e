"""Opens an encoder of images with the encoder of texts that it is compared with (CLIP, SigLIP)."""

from dataclasses import replace
from pathlib import Path

from ortolan.export.exportable import Exportable
from ortolan.export.source.family import UNBUILT, open_family
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.modeling.checkpoint.contrast import kind_of, read_contrast
from ortolan.modeling.checkpoint.folder import read_config_and_keys, unknown_keys
from ortolan.modeling.config import EncoderConfig
from ortolan.runtime.bundle.parts import TEXT, Comparison


def with_texts(
    images: Exportable,
    checkpoint: Checkpoint,
    *,
    tokenizer: str | Path | None,
    accept_unknown: tuple[str, ...] = (),
) -> Exportable:
    """Add the encoder of texts to that of the images of a checkpoint."""
    kind, part = kind_of(checkpoint.values), checkpoint.texts
    if kind is None or part is None:
        raise TypeError("expected a checkpoint of images and texts")
    known = unknown_keys(part)
    accepted = tuple(key for key in accept_unknown if key in known)
    config, keys = read_config_and_keys(part, EncoderConfig, accept_unknown=accepted)
    texts = open_family(config, keys, part, tokenizer=tokenizer, max_context=None)
    contrast = read_contrast(kind, checkpoint.tensors)
    comparison = Comparison(
        encoder=UNBUILT, scale=contrast.scale, bias=contrast.bias, scores=contrast.scores
    )
    return replace(images, parts={TEXT: texts}, comparison=comparison)


def keys_of_images(checkpoint: Checkpoint, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Accepted keys of a config without those of its encoder of texts alone."""
    texts = checkpoint.texts
    if texts is None or not keys:
        return keys
    apart = set(unknown_keys(texts)) - set(unknown_keys(checkpoint))
    return tuple(key for key in keys if key not in apart)
