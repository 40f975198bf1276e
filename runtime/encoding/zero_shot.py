"""Zero-shot classification: labels that the caller chooses, in sentences.

Texts are scored by entailment. Images are compared with texts (Radford et al. 2021, section 3.1,
and Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training").

Shape letters: N inputs, L labels, C classes of the model, W width of an embedding.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_flag
from ortolan.runtime.bundle.kinds import ScoreFunction
from ortolan.runtime.bundle.labels import named_scores, ranked, scores_of
from ortolan.runtime.bundle.parts import Comparison
from ortolan.runtime.encoding.call import Row
from ortolan.runtime.encoding.classification import Classification, classification
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.inputs.source import as_list

TEMPLATE = "This example is {}."
"""Default hypothesis about a text, as in transformers."""

IMAGE_TEMPLATE = "This is a photo of {}."
"""Default sentence about an image, as in transformers."""


def entailment_of(labels: Sequence[str]) -> int | None:
    """Index of the entailment label, found by its name; None without one."""
    found = [n for n, label in enumerate(labels) if label.lower().startswith("entail")]
    return found[0] if found and len(labels) > 1 else None


def sentences_of(labels: Any, template: Any) -> list[str]:
    """Put each label into the template."""
    if not isinstance(template, str) or template.count("{}") != 1:
        raise InputError(
            f"template must contain {{}} exactly once, for the label (got {shown(template)})."
        )
    if isinstance(labels, str) or not isinstance(labels, Sequence) or not labels:
        raise InputError(f"labels must be a list with at least one label (got {shown(labels)}).")
    for label in labels:
        if not isinstance(label, str) or not label.strip():
            raise InputError(f"labels must be non-empty strings (got {shown(label)}).")
    if len(set(labels)) < len(labels):
        raise InputError(f"labels must be unique (got {shown(list(labels))}).")
    return [template.replace("{}", label) for label in labels]


def pairs_of(inputs: Any, labels: Any, template: Any) -> list[tuple[str, str]]:
    """Pair each text with the hypothesis of each label."""
    hypotheses = sentences_of(labels, template)
    texts = as_list(inputs)
    for text in texts:
        if not isinstance(text, str):
            raise InputError(
                f"Scoring your own labels needs texts, not ids or images (got {shown(text)})."
            )
    return [(text, hypothesis) for text in texts for hypothesis in hypotheses]


def entailed(
    rows: Sequence[Row], labels: Sequence[str], *, entailment: int, multi_label: bool
) -> list[Classification]:
    """Score the labels of each text."""
    if not rows:
        return []
    logits_NLC = np.array(rows, np.float64).reshape(-1, len(labels), len(rows[0]))
    numbers_NL: NDArray[np.float64] = logits_NLC[..., entailment]
    function: ScoreFunction = "softmax"
    if multi_label or len(labels) == 1:
        contradiction = -1 if entailment == 0 else 0
        numbers_NL = numbers_NL - logits_NLC[..., contradiction]
        function = "sigmoid"
    return [classification(named_scores(row_L, function, labels)) for row_L in numbers_NL]


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
