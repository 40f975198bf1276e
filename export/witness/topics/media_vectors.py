"""Vectors that an encoder makes of pictures or sounds for a decoder.

The reference of the encoder's certificate is compared, whatever the precision: a prompt compares
what the bundle computes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ortolan.export.witness.bundled import FLOAT32, Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.sources import kept_probes, probe_source, publisher_inputs
from ortolan.export.witness.topic import Topic
from ortolan.export.witness.topics.media_inputs import whole_features
from ortolan.runtime.bundle.image_sources import ImageSource
from ortolan.runtime.bundle.parts import SOUND, VISION
from ortolan.runtime.bundle.sound_sources import ChunkedSource
from ortolan.runtime.verification.certificate import Vectors

FOLDERS: Mapping[type, str] = {ImageSource: VISION, ChunkedSource: SOUND}
"""Folders of the encoders that are asked, by what they read."""


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Probes of the encoder's certificate, with the vectors that it keeps.

    Pictures of any size are left out, since each type of transformers takes them in its own form,
    and sounds that processors make longer.
    """
    folder = FOLDERS.get(type(bundled.reads))
    if bundled.manifest.features is None or folder is None:
        return {}
    part = Bundled(bundled.bundle.path / folder)
    reference, found = part.certificate.reference, dict[str, Any]()
    if not isinstance(reference, Vectors):
        return {}
    for number, _, positions, rows in kept_probes(part.certificate):
        value = probe_source(part, number)
        if isinstance(part.reads, ChunkedSource) and len(value) < part.reads.shortest:
            continue
        found[f"probe {number + 1}"] = {
            "value": value,
            "positions": positions,
            "vectors": reference.values[rows],
        }
    return found


def ours(_: Bundled, question: Mapping[str, Any]) -> Answer:
    """The vectors that the certificate keeps."""
    return question["vectors"]


@torch.inference_mode()
def theirs(publisher: Publisher, question: Mapping[str, Any]) -> Answer:
    """The same from the encoder and the projection of transformers."""
    value = question["value"]
    if value.dtype == np.uint8:
        inputs = publisher_inputs(publisher, value, is_probe=True)
        output = publisher.stack.get_image_features(pixel_values=inputs["pixel_values"])
    else:
        inputs = whole_features(publisher, value)
        features = inputs["input_features"], inputs["attention_mask"]
        output = publisher.stack.get_audio_features(*features)
    vectors = getattr(output, "pooler_output", output)
    if isinstance(vectors, list | tuple):
        vectors = torch.cat(list(vectors))
    return vectors.flatten(0, -2).float().numpy()[question["positions"]]


MEDIA_VECTORS = Topic(
    name="media vectors", questions=questions, ours=ours, theirs=theirs, tolerance=FLOAT32
)
