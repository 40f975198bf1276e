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

WINDOW, STRIDE, TOKENS = 384, 128, 15
"""Tokens of a window, of what two share, and of an answer, at most."""

QUESTION = "Where does Ada live?"


def questions(bundled: Bundled) -> Mapping[str, Any]:
    """Short contexts and one of several windows, with and without an answer."""
    if bundled.output != "spans" or not bundled.has_exact_numbers:
        return {}
    long = bundled.long_text(2 * min(WINDOW, bundled.manifest.context_length))
    contexts = {**SENTENCES, "several windows": long + SENTENCES["languages"]}
    asked: dict[str, Any] = {name: (QUESTION, context, {}) for name, context in contexts.items()}
    asked["no answer"] = QUESTION, SENTENCES["a sentence"], {"allow_none": True}
    asked["answers of two tokens"] = QUESTION, FILLER, {"max_answer_tokens": 2}
    return asked


def ours(bundled: Bundled, question: Any) -> Answer:
    """Text, place and score of the answer."""
    text, context, options = question
    answer = bundled.model.answer(text, context, **options)
    return [answer.text, answer.start, answer.end, answer.score]


@torch.inference_mode()
def theirs(publisher: Publisher, question: Any) -> Answer:
    """The same from the windows of the publisher's tokenizer."""
    from transformers.pipelines.document_question_answering import select_starts_ends

    text, context, options = question
    allow_none = options.get("allow_none", False)
    most = min(WINDOW, publisher.limit or WINDOW)
    tokenizer = publisher.tokenizer
    encoded = tokenizer(
        text,
        context,
        truncation="only_second",
        max_length=most,
        stride=min(STRIDE, most // 2),
        return_overflowing_tokens=True,
    )
    best: tuple[str, int, int, float] = ("", 0, 0, -1.0)
    null = 1e6
    for number, window in enumerate(encoded.encodings):
        rows = {name: encoded[name][number] for name in tokenizer.model_input_names}
        output = publisher.model(**{name: torch.tensor([row]) for name, row in rows.items()})
        outside = np.array([sequence != 1 for sequence in encoded.sequence_ids(number)])
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
            start, end = _place(window, int(first))[0], _place(window, int(last))[1]
            if score > best[3]:
                best = context[start:end], start, end, float(score)
    return ("", 0, 0, float(null)) if allow_none and null > best[3] else best


def _place(window: Any, token: int) -> Any:
    """Characters of the word of a token, or of the token where the tokenizer has no words."""
    word = window.token_to_word(token)
    return window.offsets[token] if word is None else window.word_to_chars(word, 1)


ANSWERS = Topic(
    name="answers", questions=questions, ours=ours, theirs=with_either_tokenizer(theirs)
)
