"""Opens an encoder of images with the encoder of texts that it is compared with (CLIP, SigLIP)."""

from dataclasses import replace
from pathlib import Path

from ortolan.export.exportable import Exportable
from ortolan.export.source.family import UNBUILT, open_family
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.modeling.checkpoint.contrast import kind_of, read_contrast
from ortolan.modeling.checkpoint.folder import read_config, unknown_keys
from ortolan.modeling.config import EncoderConfig, ModelConfig
from ortolan.runtime.bundle.parts import Comparison


def open_contrast(
    config: ModelConfig,
    checkpoint: Checkpoint,
    *,
    tokenizer: str | Path | None,
    max_context: int | None,
    accept_unknown: tuple[str, ...] = (),
) -> Exportable:
    """Both encoders of a checkpoint. Same options and errors as `open_exportable`.

    The tokenizer is for the texts.
    """
    kind, part = kind_of(checkpoint.values), checkpoint.texts
    if kind is None or part is None:
        raise TypeError("expected a checkpoint of images and texts")
    images = open_family(
        config,
        checkpoint,
        tokenizer=None,
        max_context=max_context,
        accept_unknown=keys_of_images(checkpoint, accept_unknown),
    )
    known = unknown_keys(part)
    accepted = tuple(key for key in accept_unknown if key in known)
    texts = open_family(
        read_config(part, EncoderConfig, accept_unknown=accepted),
        part,
        tokenizer=tokenizer,
        max_context=None,
        accept_unknown=accepted,
    )
    contrast = read_contrast(kind, checkpoint.tensors)
    comparison = Comparison(
        encoder=UNBUILT, scale=contrast.scale, bias=contrast.bias, scores=contrast.scores
    )
    return replace(images, texts=texts, comparison=comparison)


def keys_of_images(checkpoint: Checkpoint, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Accepted keys of a config without those of its encoder of texts alone."""
    texts = checkpoint.texts
    if texts is None:
        return keys
    apart = set(unknown_keys(texts)) - set(unknown_keys(checkpoint))
    return tuple(key for key in keys if key not in apart)
