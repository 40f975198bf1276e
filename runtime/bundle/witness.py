"""What the publisher's own code answered when a bundle was made.

An export reads weights, config, tokenizer and processor with its own code, and so does the
reference of its certificate. A second library that reads the same files, such as transformers,
finds the mistakes that both share.
"""

from typing import Annotated

from msgspec import Meta

from ortolan.runtime import limits
from ortolan.runtime.bundle.field_types import Label, Record

MAX_TOPICS = 32
"""Topics of a witness; exports ask about 21 at most."""

Topics = Annotated[tuple["Agreement", ...], Meta(max_length=MAX_TOPICS)]
Count = Annotated[int, Meta(ge=0, le=limits.MAX_CONTEXT)]


class Agreement(Record, frozen=True, kw_only=True):
    """The answers to the questions of one topic.

    Attributes:
        topic: name of the topic, in the plural.
        questions: number of questions that the publisher's code answered.
        agreed: number of equal answers; fewer than `questions` only if the caller accepted that.
        largest: largest difference of a number, relative to the largest number of its answer;
            `None` if the answers have no numbers.
        unasked: why the publisher's code answered nothing, or not all.
    """

    topic: Label
    questions: Count = 0
    agreed: Count = 0
    largest: Annotated[float, Meta(ge=0)] | None = None
    unasked: Label | None = None

    @property
    def summary(self) -> str:
        """A few words: `60 of 60 texts`, `logits within 3e-07`."""
        if not self.questions:
            return ""
        if self.largest and self.agreed == self.questions:
            return f"{self.topic} within {self.largest:.0e}"
        return f"{self.agreed} of {self.questions} {self.topic}"


class Witness(Record, frozen=True, kw_only=True):
    """The publisher's code, and its answers by topic.

    Attributes:
        by: the library and its version: `transformers 5.23.0`; `None` if none was asked.
        topics: agreement by topic.
        unasked: why no library was asked.
        layers: number of layers that were compared; `None` for all.
    """

    by: Label | None = None
    topics: Topics = ()
    unasked: Label | None = None
    layers: Annotated[int, Meta(ge=1, le=limits.MAX_LAYERS)] | None = None

    @property
    def accepted(self) -> tuple[str, ...]:
        """Topics with a difference that the caller accepted."""
        return tuple(topic.topic for topic in self.topics if topic.agreed < topic.questions)

    @property
    def summary(self) -> str:
        """One line for a person."""
        if self.by is None:
            return f"nobody else was asked: {self.unasked}"
        answered = [topic.summary for topic in self.topics if topic.questions]
        verdict = "agrees" if not self.accepted else f"differs in {', '.join(self.accepted)}"
        layers = "the first layer" if self.layers == 1 else f"the first {self.layers} layers"
        depth = "" if self.layers is None else f" on {layers}"
        parts = [f"{self.by} {verdict}{depth}: {', '.join(answered)}"]
        parts += sorted({topic.unasked for topic in self.topics if topic.unasked})
        return "; ".join(parts)
