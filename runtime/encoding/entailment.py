"""Labels of one's own, by a classifier that says whether one text entails another."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.kinds import ScoreFunction
from ortolan.runtime.bundle.labels import named_scores
from ortolan.runtime.encoding.call import Row
from ortolan.runtime.encoding.classification import Classification
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.inputs.source import as_list

__all__ = ["TEMPLATE", "entailed", "entailment_of", "pairs_of"]

TEMPLATE = "This example is {}."
"""Default sentence about a text, as in transformers."""


def entailment_of(labels: Sequence[str]) -> int | None:
    """Index of the label for entailment, by its name; None if there is none."""
    found = [n for n, label in enumerate(labels) if label.lower().startswith("entail")]
    return found[0] if found and len(labels) > 1 else None


def pairs_of(inputs: Any, labels: Any, template: Any) -> list[tuple[str, str]]:
    """Each text with a sentence for each label, label by label.

    Raises:
        InputError: a text is not a string, a label is empty or repeated, or the template has no
            place for a label.
    """
    if not isinstance(template, str) or template.count("{}") != 1:
        raise InputError(f"template must have one {{}} for the label (got {shown(template)}).")
    if isinstance(labels, str) or not isinstance(labels, Sequence) or not labels:
        raise InputError(f"labels must be a list of at least one label (got {shown(labels)}).")
    for label in labels:
        if not isinstance(label, str) or not label.strip():
            raise InputError(f"labels must be texts that are not empty (got {shown(label)}).")
    if len(set(labels)) < len(labels):
        raise InputError(f"labels must differ from each other (got {shown(list(labels))}).")
    texts = as_list(inputs)
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"labels of your own are for texts (got {shown(text)}).")
    return [(text, template.replace("{}", label)) for text in texts for label in labels]


def entailed(
    rows: Sequence[Row], labels: Sequence[str], *, entailment: int, multi_label: bool
) -> list[Classification]:
    """Scores of the labels for each text.

    Args:
        rows: logits of each pair of `pairs_of`, in its order.
        labels: of the caller.
        entailment: index of that label of the model. Contradiction is the first of the others, or
            the last one if entailment is the first of all.
        multi_label: see `Encoder.classify_as`; one label is always scored by itself.
    """
    if not rows:
        return []
    logits_NLC = np.array(rows, np.float64).reshape(-1, len(labels), len(rows[0]))
    numbers_NL: NDArray[np.float64] = logits_NLC[..., entailment]
    function: ScoreFunction = "softmax"
    if multi_label or len(labels) == 1:
        contradiction = -1 if entailment == 0 else 0
        numbers_NL = numbers_NL - logits_NLC[..., contradiction]
        function = "sigmoid"
    results = []
    for numbers_L in numbers_NL:
        scores = named_scores(numbers_L, function, labels)
        label, score = next(iter(scores.items()))
        results.append(Classification(label=label, score=score, scores=scores))
    return results
