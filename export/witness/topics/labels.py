"""Labels of texts and pairs, and their scores."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.floats import UnansweredError
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.topic import Topic, with_either_tokenizer
from ortolan.export.witness.topics.embeddings import MOST_TOKENS
from ortolan.runtime.bundle.labels import scores_of

KINDS = ("labels", "tags", "scores")
"""Kinds of output that classify a text."""

NAMES, FUNCTION = "names", "function of the scores"

SHOWN = 4
"""Labels whose scores are compared where numbers of rounded weights cannot be."""


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Names of the labels, how logits become scores, and texts and pairs to classify."""
    output = bundled.manifest.output
    if not bundled.is_text_encoder or output is None:
        return {}
    # a pipeline, which knows the function, needs a tokenizer
    kinds = {NAMES: (*KINDS, "token_labels"), FUNCTION: () if bundled.tokenizer is None else KINDS}
    asked: dict[str, Any] = {name: name for name, own in kinds.items() if output.kind in own}
    if bundled.output in KINDS:
        asked |= bundled.readings(most=MOST_TOKENS)
    return asked


def ours(bundled: Bundled, reading: Any) -> Answer:
    """The score of each label, or their names in order."""
    output, function = bundled.manifest.output, bundled.manifest.output_kind.scores
    assert output is not None
    assert function is not None
    if reading == NAMES:
        return list(output.labels)
    if reading == FUNCTION:
        return _shown(scores_of(_logits(output.size), function))
    (result,) = bundled.model.classify([reading.value], truncate=True)
    return dict(result.scores)


def theirs(publisher: Publisher, reading: Any) -> Answer:
    """The same from a pipeline, or a reranker's score from sentence-transformers."""
    config = publisher.config
    names = [str(config.id2label[number]) for number in range(config.num_labels)]
    if reading == NAMES:
        return names
    is_reranker = publisher.is_cross_encoder and len(names) == 1  # see `known.ACTIVATION`
    classify = publisher.pipeline("text-classification")
    if reading == FUNCTION:
        logits = torch.from_numpy(_logits(len(names)))
        if is_reranker:
            return _shown(publisher.sentence_stack.activation_fn(logits))
        scores = classify.postprocess({"logits": logits[None]}, top_k=None)
        return _shown([score["score"] for score in scores])
    if len(set(names)) < len(names):  # see `known.LABELS`
        raise UnansweredError(f"{publisher.name} gives two labels one name")
    truncation = publisher.truncation(reading)
    if is_reranker:
        score = publisher.sentences.predict(reading.value, show_progress_bar=False)
        return {names[0]: float(score)}
    inputs = dict(zip(("text", "text_pair"), reading.texts, strict=False))
    results = classify(inputs, top_k=None, **truncation)
    return {result["label"]: result["score"] for result in results}


def _logits(labels: int) -> NDArray[np.float64]:
    return np.linspace(-1, 2, labels)


def _shown(scores: Any) -> Answer:
    return [f"{float(score):.3f}" for score in scores[:SHOWN]]


LABELS = Topic(name="labels", questions=questions, ours=ours, theirs=with_either_tokenizer(theirs))
