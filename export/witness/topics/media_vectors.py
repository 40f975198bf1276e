"""Vectors that an encoder makes of pictures for a decoder.

The reference of the encoder's certificate is compared, whatever the precision: a prompt compares
what the bundle computes.
"""

from collections.abc import Mapping
from typing import Any

import torch

from ortolan.export.witness.bundled import FLOAT32, Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.sources import probe_source, publisher_inputs
from ortolan.export.witness.topic import Topic
from ortolan.runtime.bundle.image_sources import ImageSource
from ortolan.runtime.bundle.parts import VISION
from ortolan.runtime.verification.certificate import Vectors, kept_positions


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Probes of the encoder's certificate, with the vectors that it keeps.

    Pictures of any size are left out, since each type of transformers takes them in its own form.
    """
    if bundled.manifest.features is None or not isinstance(bundled.reads, ImageSource):
        return {}
    part = Bundled(bundled.bundle.path / VISION)
    reference, row, found = part.certificate.reference, 0, {}
    if not isinstance(reference, Vectors):
        return {}
    for number, probe in enumerate(part.certificate.probes):
        positions = kept_positions(probe.length, part.certificate.output)
        found[f"probe {number + 1}"] = {
            "value": probe_source(part, number),
            "positions": positions,
            "vectors": reference.values[row : row + len(positions)],
        }
        row += len(positions)
    return found


def ours(_: Bundled, question: Mapping[str, Any]) -> Answer:
    """The vectors that the certificate keeps."""
    return question["vectors"]


@torch.inference_mode()
def theirs(publisher: Publisher, question: Mapping[str, Any]) -> Answer:
    """The same from the encoder and the projection of transformers."""
    inputs = publisher_inputs(publisher, question["value"], is_probe=True)
    output = publisher.stack.get_image_features(pixel_values=inputs["pixel_values"])
    vectors = getattr(output, "pooler_output", output)
    if isinstance(vectors, list | tuple):
        vectors = torch.cat(list(vectors))
    return vectors.flatten(0, -2).float().numpy()[question["positions"]]


MEDIA_VECTORS = Topic(
    name="media vectors", questions=questions, ours=ours, theirs=theirs, tolerance=FLOAT32
)
