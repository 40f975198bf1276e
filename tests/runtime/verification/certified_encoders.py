"""Tiny encoders of texts and images with a certificate, made by their definition in numpy."""

from pathlib import Path
from typing import Any

import numpy as np
from tests.runtime import tiny_encoder
from tests.runtime.damaged_bundles import reseal
from tests.runtime.tiny_encoder import CHANNELS, HEIGHT, IMAGE, VOCABULARY, WIDTH_PIXELS

from ortolan.runtime.bundle.kinds import OUTPUTS
from ortolan.runtime.verification.certificate import (
    Certificate,
    Logits,
    Probe,
    Vectors,
    kept_positions,
)
from ortolan.runtime.verification.certificate_files import write_certificate
from ortolan.runtime.verification.comparison import summarize, widened
from ortolan.runtime.verification.report import Thresholds

LENGTHS = (1, 3, 9, 24)

LOGITS = Thresholds(mean_kl=1e-6, max_abs_delta=1e-4, near_tie=1e-3)
VECTORS = Thresholds(mean_cosine=1e-8, max_abs_delta=1e-4)


def write_bundle(folder: Path, kind: Any, *, is_image: bool = False) -> Certificate:
    """Write a certified encoder with this output."""
    tiny = tiny_encoder.write_bundle(folder, kind=kind, image=IMAGE if is_image else None)
    random = np.random.default_rng(3)
    if is_image:
        lengths: tuple[int, ...] = (1,) * len(LENGTHS)
        token_ids = np.empty(0, np.int32)
        images = random.integers(0, 256, (len(LENGTHS), HEIGHT, WIDTH_PIXELS, CHANNELS), np.uint8)
        mean, std = map(np.array, (IMAGE.mean, IMAGE.std))
        pixels = ((images / 255 - mean) / std).transpose(0, 3, 1, 2).astype(np.float32)
        outputs = [tiny.image_reference(image) for image in pixels]
    else:
        lengths, images = LENGTHS, None
        token_ids = random.integers(4, VOCABULARY, sum(LENGTHS)).astype(np.int32)
        texts = np.split(token_ids, np.cumsum(LENGTHS)[:-1])
        outputs = [tiny.reference(ids.tolist()) for ids in texts]
    rows = np.concatenate(
        [
            np.atleast_2d(output)[kept_positions(length, tiny.kind)]
            for output, length in zip(outputs, lengths, strict=True)
        ]
    )
    are_logits = OUTPUTS[tiny.kind].are_logits
    reference: Logits | Vectors = Vectors(values=rows.astype(np.float32))
    if are_logits:
        reference = summarize(widened(rows), 3)
    certificate = Certificate(
        text="random ids",
        probes=tuple(Probe(name=f"probe {n}", length=length) for n, length in enumerate(lengths)),
        thresholds=LOGITS if are_logits else VECTORS,
        measured=None,
        reference=reference,
        token_ids=token_ids,
        images=images,
        kind="encoder",
        output=tiny.kind,
    )
    write_certificate(folder, certificate)
    reseal(folder)
    return certificate
