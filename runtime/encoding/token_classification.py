"""Labels of tokens, and the entities that tokens with labels make up.

Tokens are grouped as by the token classification pipeline of transformers. Labels may begin with
`B-`, where an entity begins, and `I-`, where it goes on (Ramshaw and Marcus 1995).

Shape letters: T tokens, L labels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.bundle.labels import scores_of
from ortolan.runtime.encoding.rows import Rows
from ortolan.runtime.errors import InputError, shown
from ortolan.runtime.inputs.ids import TextIds, TokenSpan
from ortolan.runtime.inputs.input_reader import Inputs

Aggregation = Literal["none", "simple", "first", "average", "max"]
"""How tokens become entities. `none`: each token is one. `simple`: neighbours of one label are one.
The others first give all tokens of a word one label: that of its first token, that of the highest
mean score, or that of the token with the highest score."""

OUTSIDE = "O"
"""Label of tokens that belong to no entity."""

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabeledSpan:
    """A part of a text with a label.

    Attributes:
        text: `text[start:end]` of the input.
        label: of a token, as the model names it; of an entity, without `B-` or `I-`.
        score: probability of the label; of an entity, the mean over its tokens or words.
        start: first character.
        end: character after the last.
    """

    text: str
    label: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenClassification:
    """Labels of the tokens of a text.

    Attributes:
        tokens: each token with its most probable label, without special tokens.
        entities: groups of tokens, without those of the label `O`.
    """

    tokens: tuple[LabeledSpan, ...]
    entities: tuple[LabeledSpan, ...]


def classify_tokens(
    rows: Rows, inputs: Inputs, *, aggregation: Aggregation, truncate: bool
) -> list[TokenClassification]:
    """See `Encoder.classify_tokens`."""
    rows.expect("token_labels", what="classify_tokens", expected="labels for each token")
    if aggregation not in get_args(Aggregation):
        names = ", ".join(get_args(Aggregation))
        raise InputError(f"aggregation must be one of {names} (got {shown(aggregation)}).")
    items = rows.items(inputs, truncate=truncate, spans=True)
    texts = [item.value for item in items if isinstance(item.value, TextIds)]
    pairs = zip(rows.outputs(items), texts, strict=True)
    return [_classified(row, ids, rows.output.labels, aggregation) for row, ids in pairs]


def _classified(
    logits_TL: NDArray[np.float32],
    ids: TextIds,
    labels: Sequence[str],
    aggregation: Aggregation,
) -> TokenClassification:
    parts = [
        (span, scores_of(logits_L, "softmax"))
        for span, logits_L in zip(ids.spans, logits_TL, strict=True)
        if span is not None
    ]
    tokens = [_labeled(ids.text, [span], scores_L, labels) for span, scores_L in parts]
    entities = tokens
    if aggregation in _OF_WORDS:
        entities = [
            _labeled(
                ids.text,
                [span for span, _ in word],
                _OF_WORDS[aggregation]([scores_L for _, scores_L in word]),
                labels,
            )
            for word in _words(parts)
        ]
    if aggregation != "none":
        entities = _grouped(ids.text, entities)
    return TokenClassification(
        tokens=tuple(tokens),
        entities=tuple(entity for entity in entities if entity.label != OUTSIDE),
    )


_OF_WORDS: Mapping[str, Callable[[list[Scores]], Scores]] = {
    "first": lambda scores: scores[0],
    "average": lambda scores: np.asarray(np.mean(scores, axis=0)),
    "max": lambda scores: max(scores, key=lambda scores_L: float(scores_L.max())),
}
"""Scores of a word from those of its tokens."""


def _words(parts: list[tuple[TokenSpan, Scores]]) -> list[list[tuple[TokenSpan, Scores]]]:
    words: list[list[tuple[TokenSpan, Scores]]] = []
    for part in parts:
        if words and part[0].continues_word:
            words[-1].append(part)
        else:
            words.append([part])
    return words


def _labeled(
    text: str, spans: Sequence[TokenSpan], scores_L: Scores, labels: Sequence[str]
) -> LabeledSpan:
    best, start, end = int(scores_L.argmax()), spans[0].start, spans[-1].end
    return LabeledSpan(
        text=text[start:end],
        label=labels[best],
        score=float(scores_L[best]),
        start=start,
        end=end,
    )


def _grouped(text: str, parts: Sequence[LabeledSpan]) -> list[LabeledSpan]:
    """Join neighbours of one label, unless the second begins an entity."""
    groups: list[list[LabeledSpan]] = []
    for part in parts:
        continues = not part.label.startswith("B-")
        if groups and continues and _tag(groups[-1][-1].label) == _tag(part.label):
            groups[-1].append(part)
        else:
            groups.append([part])
    return [
        LabeledSpan(
            text=text[group[0].start : group[-1].end],
            label=group[0].label.split("-", 1)[-1],
            score=float(np.mean([part.score for part in group])),
            start=group[0].start,
            end=group[-1].end,
        )
        for group in groups
    ]


def _tag(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label
