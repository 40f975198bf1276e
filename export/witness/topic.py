"""A topic: questions, and the two that answer them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ortolan.export.options import WitnessTopic
from ortolan.export.witness.bundled import Bundled
from ortolan.export.witness.compare import Answer, Either
from ortolan.export.witness.floats import is_out_of_memory
from ortolan.export.witness.publisher import Publisher

Theirs = Callable[[Publisher, Any], Answer]


def with_either_tokenizer(theirs: Theirs) -> Theirs:
    """Answers with the tokenizer as transformers builds it, or as tokenizer.json has it."""

    def answer(publisher: Publisher, question: Any) -> Answer:
        try:
            first = theirs(publisher, question)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return theirs(publisher.as_saved, question)

        def second() -> Answer:
            try:
                return theirs(publisher.as_saved, question)
            except Exception:  # whatever the publisher's code raises
                return first

        return Either(first, second)

    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Questions of one kind.

    Attributes:
        name: in messages, in the plural; also the value of `--accept-difference`.
        questions: by name, for a bundle; none where the topic does not apply.
        ours: the bundle's answer to one question.
        theirs: the publisher's answer. Raises `UnansweredError` where its code cannot tell.
        tolerance: largest difference of numbers relative to the largest of an answer; by default
            that of the bundle's precision.
        explain: where the two part, in words, for the first question whose answers differ.
    """

    name: WitnessTopic
    questions: Callable[[Bundled], Mapping[str, Any]]
    ours: Callable[[Bundled, Any], Answer]
    theirs: Theirs
    tolerance: float | None = None
    explain: Callable[[Bundled, Publisher, Any], str | None] | None = None
