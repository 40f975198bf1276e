"""Parts of a context that answer a question.

transformers 5 has no pipeline for it: these are the steps of that of transformers 4.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer
from ortolan.export.witness.publisher import Publisher
from ortolan.export.witness.texts import FILLER, SENTENCES
from ortolan.export.witness.topic import Topic, with_either_tokenizer
from ortolan.runtime.inputs.readers import reader_of

WINDOW, STRIDE, TOKENS = 384, 128, 15
"""Tokens of a window, of what two share, and of an answer, at most."""

QUESTION = "Where does Ada live?"


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Windows of contexts and, where scores can be compared, answers in them."""
    if bundled.output != "spans":
        return {}
    long = bundled.long_text(2 * min(WINDOW, bundled.manifest.context_length))
    contexts = {**SENTENCES, "several windows": long + SENTENCES["languages"]}
    asked: dict[str, Any] = {
        f"windows of {name}": (QUESTION, context, None) for name, context in contexts.items()
    }
    if bundled.has_exact_numbers:
        asked |= {name: (QUESTION, context, {}) for name, context in contexts.items()}
        asked["no answer"] = QUESTION, SENTENCES["a sentence"], {"allow_none": True}
        asked["answers of two tokens"] = QUESTION, FILLER, {"max_answer_tokens": 2}
    return asked


def ours(bundled: Bundled, question: Any) -> Answer:
    """Text, place and score of the answer; or windows, with the word of each token."""
    text, context, options = question
    if options is not None:
        answer = bundled.model.answer(text, context, **options)
        return [answer.text, answer.start, answer.end, answer.score]
    reader = reader_of(bundled.manifest, bundled.tokenizer)
    most = min(WINDOW, reader.max_tokens)
    stride = min(STRIDE, most // 2)
    windows = reader.read_windows(text, context, max_tokens=most, stride=stride)
    return [{"ids": list(window), "words": window.words} for window in windows]


@torch.inference_mode()
def theirs(publisher: Publisher, question: Any) -> Answer:
    """The same from the publisher's tokenizer and model."""
    text, context, options = question
    most = min(WINDOW, publisher.limit or WINDOW)
    encoded = publisher.tokenizer(
        text,
        context,
        truncation="only_second",
        max_length=most,
        stride=min(STRIDE, most // 2),
        return_overflowing_tokens=True,
    )
    if options is not None:
        return _answer(publisher, encoded, context, options)
    return [
        {"ids": window.ids, "words": [_word(window, token) for token in range(len(window.ids))]}
        for window in encoded.encodings
    ]


def _answer(publisher: Publisher, encoded: Any, context: str, options: Any) -> Answer:
    from transformers.pipelines.document_question_answering import select_starts_ends

    best: tuple[str, int, int, float] = ("", 0, 0, -1.0)
    allow_none, null = options.get("allow_none", False), 1e6
    for number, window in enumerate(encoded.encodings):
        names = publisher.tokenizer.model_input_names
        rows = {name: torch.tensor([encoded[name][number]]) for name in names}
        output = publisher.model(**rows)
        outside = np.array([sequence != 1 for sequence in window.sequence_ids])
        outside[0] = False  # the first token stands for no answer
        starts, ends, scores, null = select_starts_ends(
            output.start_logits.numpy(),
            output.end_logits.numpy(),
            outside[None],
            np.ones((1, len(window.ids)), bool),
            null,
            1,
            allow_none,
            options.get("max_answer_tokens", TOKENS),
        )
        for first, last, score in zip(starts, ends, scores, strict=True):
            words = _word(window, int(first)), _word(window, int(last))
            if score > best[3] and words[0] and words[1]:
                start, end = words[0][0], words[1][1]
                best = context[start:end], start, end, float(score)
    return ("", 0, 0, float(null)) if allow_none and null > best[3] else best


def _word(window: Any, token: int) -> tuple[int, int] | None:
    """Characters of the word of a token of the context, or of the token where there is no word."""
    if window.sequence_ids[token] != 1:
        return None
    word = window.token_to_word(token)
    start, end = window.offsets[token] if word is None else window.word_to_chars(word, 1)
    return start, end


ANSWERS = Topic(
    name="answers", questions=questions, ours=ours, theirs=with_either_tokenizer(theirs)
)
