"""Zero-shot classification of images: labels that the caller chooses, as texts.

Radford et al. 2021, section 3.1, and Zhai et al. 2023, "Sigmoid Loss for Language Image
Pre-Training". Knows vectors of images and of texts, but does not compute them.

Shape letters: N images, L labels, W width of an embedding.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_flag
from ortolan.runtime.bundle.labels import ranked, scores_of
from ortolan.runtime.bundle.parts import Comparison
from ortolan.runtime.encoding.call import Row
from ortolan.runtime.encoding.classification import Classification, classification
from ortolan.runtime.errors import InputError

IMAGE_TEMPLATE = "This is a photo of {}."
"""Default sentence about an image, as in transformers."""


def check_multi_label(comparison: Comparison, *, multi_label: bool) -> None:
    """Raise InputError if the model cannot score labels independently."""
    if checked_flag("multi_label", multi_label) and comparison.scores == "softmax":
        raise InputError(
            "multi_label: this model only says which label fits an image best, so its scores "
            "always add up to 1. Leave it out."
        )


def logits_of(
    images_NW: NDArray[np.float32], texts_LW: NDArray[np.float32], comparison: Comparison
) -> NDArray[np.float64]:
    """Logits of each image and text, `(N, L)`, from embeddings of length 1."""
    cosines_NL = images_NW.astype(np.float64) @ texts_LW.astype(np.float64).T
    logits_NL: NDArray[np.float64] = cosines_NL * comparison.scale + comparison.bias
    return logits_NL


def compared(
    rows: Sequence[Row],
    labels: Sequence[str],
    texts_LW: NDArray[np.float32],
    comparison: Comparison,
) -> list[Classification]:
    """Score the labels of each image from embeddings `(W,)`; the softmax of a single label is 1."""
    if not rows:
        return []
    results = []
    for logits_L in logits_of(np.stack(rows), texts_LW, comparison):
        is_certain = comparison.scores == "softmax" and len(labels) == 1
        scores_L = np.ones(1) if is_certain else scores_of(logits_L, comparison.scores)
        results.append(classification(ranked(scores_L, labels)))
    return results
