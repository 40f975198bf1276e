"""Sources of encoders: those of a certificate's probes, and what the publisher's code reads."""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.publisher import Publisher
from ortolan.runtime.bundle.image_sources import ImageSource, PatchSource
from ortolan.runtime.bundle.sound_sources import AudioSource, ChunkedSource, WaveSource
from ortolan.runtime.bundle.text_source import TextSource
from ortolan.runtime.verification.certificate import Certificate, Probe, kept_positions
from ortolan.runtime.verification.probes import probe_sound, probe_wave, sized_picture

if TYPE_CHECKING:
    from PIL import Image

Inputs = Mapping[str, torch.Tensor]
"""Arguments of a model of transformers."""


def kept_probes(certificate: Certificate) -> Iterator[tuple[int, Probe, list[int], slice]]:
    """Number of each probe, the probe, its positions in the reference, and their rows there."""
    row = 0
    for number, probe in enumerate(certificate.probes):
        positions = kept_positions(probe.length, certificate.output)
        yield number, probe, positions, slice(row, row + len(positions))
        row += len(positions)


def probe_source(bundled: Bundled, number: int) -> Any:
    """What the encoder reads of a probe: token ids, pixels or samples; None without an encoder."""
    source, certificate = bundled.manifest.source, bundled.reference
    probe = certificate.probes[number]
    vectors = probe.length if probe.source is None else probe.source
    match source:
        case None:
            return None
        case TextSource():
            starts = list(accumulate((own.source or 0 for own in certificate.probes), initial=0))
            ids: list[int] = certificate.source_ids[starts[number] : starts[number + 1]].tolist()
            return ids
        case ImageSource():
            return None if certificate.images is None else certificate.images[number]
        case PatchSource():
            return sized_picture(source, number)
        case AudioSource():
            return probe_sound(source, number)
        case WaveSource() | ChunkedSource():
            return probe_wave(source, number, vectors)


def publisher_inputs(publisher: Publisher, source: Any, *, is_probe: bool = False) -> Inputs:
    """What the publisher's processors make of a source; a picture of a probe fits already."""
    if isinstance(source, list):
        ids = torch.tensor([source])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if source.dtype == np.uint8:
        steps = ("do_resize", "do_center_crop") if is_probe else ()
        return image_inputs(publisher, source, **dict.fromkeys(steps, False))
    return sound_inputs(publisher, source)


def image_inputs(publisher: Publisher, pixels: NDArray[np.uint8], **options: Any) -> Inputs:
    """What the publisher's image processor makes of pixels."""
    options = {**publisher.image_options, **options, "return_tensors": "pt"}
    inputs: Inputs = publisher.image_processor(images=[picture(publisher, pixels)], **options)
    return inputs


def picture(publisher: Publisher, pixels: NDArray[np.uint8]) -> "Image.Image":
    """An image as users pass it: with the model's channels, unless the processor converts it."""
    from PIL import Image  # not among the packages of an export

    image = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    if getattr(publisher.image_processor, "do_convert_rgb", None):
        return image
    config = getattr(publisher.config, "vision_config", publisher.config)
    return image.convert("L" if getattr(config, "num_channels", 3) == 1 else "RGB")


def sound_inputs(publisher: Publisher, samples: NDArray[np.float32], **options: Any) -> Inputs:
    """What the publisher's feature extractor makes of samples at its rate."""
    extractor = publisher.feature_extractor
    inputs: Inputs = extractor(
        samples, sampling_rate=extractor.sampling_rate, return_tensors="pt", **options
    )
    return inputs
