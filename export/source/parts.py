"""Parts of a checkpoint that become bundles in the bundle, besides the media that a decoder reads.

The head that predicts further tokens (MTP), and the encoder of the texts that an encoder of images
is compared with (CLIP, SigLIP).
"""

from dataclasses import replace
from pathlib import Path

from ortolan.export.errors import OptionError
from ortolan.export.exportable import Exportable
from ortolan.export.source.family import UNBUILT, open_family
from ortolan.modeling.checkpoint.checkpoint import Checkpoint
from ortolan.modeling.checkpoint.contrast import kind_of, read_contrast
from ortolan.modeling.checkpoint.folder import read_config_and_keys, unknown_keys
from ortolan.modeling.checkpoint.mtp import mtp_checkpoint
from ortolan.modeling.config import DecoderConfig, EncoderConfig, ModelConfig
from ortolan.modeling.families.reader import ConfigKeys
from ortolan.runtime.bundle.parts import MTP, TEXT, Comparison, HiddenStates


def open_with_head(
    config: ModelConfig,
    keys: ConfigKeys,
    checkpoint: Checkpoint,
    *,
    tokenizer: str | Path | None,
    max_context: int | None,
    accept_unknown: tuple[str, ...] = (),
) -> Exportable:
    """Open a decoder whose graphs return states, with the head that reads them."""
    part = mtp_checkpoint(checkpoint)
    if not isinstance(config, DecoderConfig):
        raise OptionError("mtp needs a decoder. Leave it out.")
    size = config.hidden_size
    of_head, its_keys = read_config_and_keys(part, DecoderConfig, accept_unknown=accept_unknown)
    model, mtp_head = (
        open_family(
            replace(own, gives_states=True),
            own_keys,
            source,
            tokenizer=tokenizer,
            max_context=max_context,
        )
        for own, own_keys, source in ((config, keys, checkpoint), (of_head, its_keys, part))
    )
    return replace(
        model,
        hidden=HiddenStates(size=size, head=UNBUILT),
        parts={**model.parts, MTP: replace(mtp_head, hidden=HiddenStates(size=size))},
    )


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
