"""Zero-shot classification: labels that the caller chooses, scored by entailment."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.kinds import ScoreFunction
from ortolan.runtime.bundle.labels import named_scores
from ortolan.runtime.encoding.call import Row
from ortolan.runtime.encoding.classification import Classification, classification
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.inputs.source import as_list

TEMPLATE = "This example is {}."
"""Default hypothesis about a text, as in transformers."""


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
