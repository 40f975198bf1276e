"""Extractive question answering: the part of a context that answers a question.

Scores and words are those of the question answering pipeline of transformers 4.

Shape letters: T tokens of a window.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ortolan.runtime.arguments import checked_count, checked_flag
from ortolan.runtime.bundle.labels import scores_of
from ortolan.runtime.encoding.rows import Rows
from ortolan.runtime.errors import InputError, shown

ANSWER_TOKENS = 15
"""Default maximum length of an answer in tokens, as in transformers."""

WINDOW_TOKENS, STRIDE = 384, 128
"""Length of a window of a context, and default overlap of two, in tokens, as in transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The part of a context that answers a question.

    Attributes:
        text: `context[start:end]`; empty if the context has no answer.
        score: probability of its first token times that of its last one.
        start: first character.
        end: character after the last.
    """

    text: str
    score: float
    start: int
    end: int


def answer(
    rows: Rows,
    question: str,
    context: str,
    *,
    max_answer_tokens: int,
    stride: int | None,
    allow_none: bool,
) -> Answer:
    """Choose the most probable answer from logits of starts and ends `(T, 2)` of each window.

    With `allow_none`, compare with the lowest probability that a window has no answer.
    """
    rows.expect("spans", what="answer", expected="a model for question answering")
    for name, text in (("question", question), ("context", context)):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{name} must be a text that is not empty (got {shown(text)}).")
    most = checked_count("max_answer_tokens", max_answer_tokens)
    allow_none = checked_flag("allow_none", allow_none)
    max_tokens = min(WINDOW_TOKENS, rows.reader.max_tokens)
    if stride is None:
        stride = min(max_tokens // 2, STRIDE)
    stride = checked_count("stride", stride, least=0)
    windows = rows.reader.read_windows(question, context, max_tokens=max_tokens, stride=stride)
    outputs = rows.outputs([rows.item(ids, index) for index, ids in enumerate(windows)])
    best, nulls = Answer(text="", score=-1.0, start=0, end=0), []
    for logits_T2, window in zip(outputs, windows, strict=True):
        inside_T = np.array([word is not None for word in window.words])
        starts_T, ends_T = (_probabilities(logits_T, inside_T) for logits_T in logits_T2.T)
        nulls.append(float(starts_T[0] * ends_T[0]))
        first, last, score = _best_span(starts_T * inside_T, ends_T * inside_T, most)
        words = window.words[first], window.words[last]
        if score > best.score and words[0] and words[1]:
            start, end = words[0][0], words[1][1]
            best = Answer(text=context[start:end], score=score, start=start, end=end)
    if allow_none and min(nulls) > best.score:
        return Answer(text="", score=min(nulls), start=0, end=0)
    return best


def _probabilities(
    logits_T: NDArray[np.float32], inside_T: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Probabilities of the context's tokens and of the first one, which stands for no answer."""
    allowed_T = inside_T.copy()
    allowed_T[0] = True
    probabilities_T = np.zeros(len(logits_T))
    probabilities_T[allowed_T] = scores_of(logits_T[allowed_T], "softmax")
    return probabilities_T


def _best_span(
    starts_T: NDArray[np.float64], ends_T: NDArray[np.float64], most: int
) -> tuple[int, int, float]:
    """First and last token of the most probable span of at most `most` tokens, and its score."""
    scores_TT = np.tril(np.triu(np.outer(starts_T, ends_T)), most - 1)
    first, last = divmod(int(scores_TT.argmax()), len(ends_T))
    return first, last, float(scores_TT[first, last])
