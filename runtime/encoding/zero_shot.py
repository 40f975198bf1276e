"""Zero-shot classification: labels that the caller chooses, in sentences.

Texts are scored by entailment. Images are compared with texts (Radford et al. 2021, section 3.1,
and Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training").

Shape letters: N inputs, L labels, C classes of the model, W width of an embedding.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_flag
from ortolan.runtime.bundle.kinds import ScoreFunction
from ortolan.runtime.bundle.labels import named_scores, ranked, scores_of
from ortolan.runtime.bundle.manifest import wrong_kind
from ortolan.runtime.bundle.parts import Comparison
from ortolan.runtime.encoding.call import Row
from ortolan.runtime.encoding.classification import Classification, classification
from ortolan.runtime.encoding.rows import Rows
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.inputs.input_reader import Inputs, as_list

TEMPLATE = "This example is {}."
"""Default hypothesis about a text, as in transformers."""

IMAGE_TEMPLATE = "This is a photo of {}."
"""Default sentence about an image, as in transformers."""

EmbedTexts = Callable[[tuple[str, ...], bool], NDArray[np.float32]]
"""Embeds texts, `(texts, width)`; the flag cuts those that are too long."""


def classify_as(
    rows: Rows,
    inputs: Inputs,
    labels: Sequence[str],
    *,
    embed_texts: EmbedTexts | None,
    multi_label: bool,
    template: str | None,
    truncate: bool,
) -> list[Classification]:
    """See `Encoder.classify_as`."""
    comparison = rows.manifest.texts
    if comparison is not None and embed_texts is not None:
        if checked_flag("multi_label", multi_label) and comparison.scores == "softmax":
            raise InputError(
                "multi_label: this model only says which label fits an image best, so its scores "
                "always add up to 1. Leave it out."
            )
        sentences = _sentences(labels, IMAGE_TEMPLATE if template is None else template)
        texts_LW = embed_texts(tuple(sentences), checked_flag("truncate", truncate))
        outputs = rows.outputs(rows.items(inputs, truncate=False))
        return _compared(outputs, labels, texts_LW, comparison)
    kind = rows.manifest.output_kind
    # the entailment label is found by its name
    found = [n for n, own in enumerate(rows.output.labels) if own.lower().startswith("entail")]
    if kind.scores != "softmax" or kind.by_token or not found or len(rows.output.labels) < 2:
        expected = "a classifier with an entailment label, or encoders of images and of texts"
        raise wrong_kind(rows.manifest, what="classify_as", expected=expected)
    hypotheses = _sentences(labels, TEMPLATE if template is None else template)
    texts = as_list(inputs)
    for text in texts:
        if not isinstance(text, str):
            raise InputError(
                f"Scoring your own labels needs texts, not ids or images (got {shown(text)})."
            )
    pairs = [(text, hypothesis) for text in texts for hypothesis in hypotheses]
    outputs = rows.outputs(rows.items(pairs, truncate=truncate))
    return _entailed(outputs, labels, entailment=found[0], multi_label=multi_label)


def _sentences(labels: Any, template: Any) -> list[str]:
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


def _entailed(
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


def _compared(
    rows: Sequence[Row],
    labels: Sequence[str],
    texts_LW: NDArray[np.float32],
    comparison: Comparison,
) -> list[Classification]:
    """Score the labels of each image from embeddings `(W,)`; the softmax of a single label is 1."""
    if not rows:
        return []
    cosines_NL = np.stack(rows).astype(np.float64) @ texts_LW.astype(np.float64).T
    results = []
    for logits_L in cosines_NL * comparison.scale + comparison.bias:
        is_certain = comparison.scores == "softmax" and len(labels) == 1
        scores_L = np.ones(1) if is_certain else scores_of(logits_L, comparison.scores)
        results.append(classification(ranked(scores_L, labels)))
    return results
